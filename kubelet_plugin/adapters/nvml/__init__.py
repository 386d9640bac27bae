"""NVML: what it reports about this node's GPUs, and how they are changed through it."""
