"""What virtual machines can get of a node: GPUs by VFIO, and vGPUs."""
