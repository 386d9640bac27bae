"""How GPUs are divided by MIG, and how they should be."""
