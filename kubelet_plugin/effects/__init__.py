"""Changes of the node that claims need beside our files, made and undone: MIG, VFIO, partitions, MPS, time slices,
limits."""
