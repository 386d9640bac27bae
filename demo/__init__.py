"""The embedded default: it runs with no cluster and no GPU.

This package has the in-memory API server (apiserver/), stand-ins for kube-scheduler, kube-controller-manager and
kubelet, a cluster made of them and of real Dracaena processes, and the show that `dracaena demo` makes of it. Each
stand-in says what it does and what it does not do.

The product imports nothing from here, and nothing here imports controller or kubelet_plugin: they run as processes of
the `dracaena` command, reached only through the API, gRPC and files. Only kubelet.py imports grpc.
"""
