"""The text of `nvidia-smi topo -m`, in the forms in which people share it."""
