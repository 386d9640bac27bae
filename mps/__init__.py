"""`dracaena mps`: the supervisor of NVIDIA's Multi-Process Service on one node.

It makes what the kubelet plugin asks for (a file a share) true with the GPU driver's own nvidia-cuda-mps-control, keeps
it true, and takes it back without a trace. `protocol` and `planning` are pure, `adapters` touch the world, the files
right in here hold state and order.
"""
