"""The central controller: watches claims, pods, nodes, slices and classes, and writes allocations.

The files here are services: they own state, order, retries, locks and logs. allocation/ is pure, adapters/ touch the
world. Nothing here imports the kubelet plugin: the ResourceSlice is the only wire between the two.
"""
