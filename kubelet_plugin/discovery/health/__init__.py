"""Faults of GPUs and their driver, and what they mean."""
