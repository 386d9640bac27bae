"""How GPUs are divided by MIG, and how they are to be."""
