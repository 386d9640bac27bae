"""Faults of GPUs, and what they mean."""
