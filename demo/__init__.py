"""The embedded default: what runs with no cluster and no GPU.

Here live the in-memory API server (apiserver/), stand-ins for kube-scheduler, kube-controller-manager and kubelet, a
cluster made of them and of real Dracaena processes, and the show that `dracaena demo` makes of it. Each stand-in says
what it does and what it does not.

Nothing here is imported by the product, and nothing here imports controller or kubelet_plugin: they run as processes
of the `dracaena` command, reached only through the API, gRPC and files. grpc is imported in kubelet.py alone.
"""
