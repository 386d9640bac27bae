"""What nvidia-cuda-mps-control is told and what it answers, in protocol 2 (`v2`) and 3 (`v3`). Pure."""
