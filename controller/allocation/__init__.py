"""Decides which devices a pod gets. Pure: a snapshot in, a decision out, the same for the same input."""
