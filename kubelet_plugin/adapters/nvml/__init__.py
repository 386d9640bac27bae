"""NVML: what it reports about this node's GPUs beyond events and MIG devices, and how they are changed through it."""
