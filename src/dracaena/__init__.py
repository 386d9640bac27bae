"""Dracaena: a Kubernetes DRA driver for NVIDIA GPUs that chooses devices by how they are linked.

The packages below this one are links to the top-level folders of the repository.
"""

__version__ = "0.1.0"
