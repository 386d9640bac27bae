"""Where all pods of a gang go at once: over nodes, racks and blocks, with the GPUs of each."""
