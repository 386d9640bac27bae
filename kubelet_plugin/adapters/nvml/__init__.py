"""NVML: what it says of this node's GPUs, and what it is told to change."""
