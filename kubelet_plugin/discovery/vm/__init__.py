"""What virtual machines can get from a node: GPUs by VFIO, and vGPUs."""
