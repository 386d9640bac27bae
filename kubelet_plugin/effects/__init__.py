"""Changes of the node that claims need beside our files, made and undone: MIG, partitions, MPS, limits."""
