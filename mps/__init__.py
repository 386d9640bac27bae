"""`dracaena mps`: the supervisor of NVIDIA's Multi-Process Service on one node.

It realizes the requests of the kubelet plugin (one file per share) with the GPU driver's own nvidia-cuda-mps-control,
keeps them in force, and undoes them without a trace. `protocol` and `planning` are pure, `adapters` touch the world,
the files at this level hold state and order.
"""
