"""Commands to nvidia-cuda-mps-control and its answers, in protocol 2 (`v2`) and 3 (`v3`). Pure."""
