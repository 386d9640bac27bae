"""The embedded default: what a newcomer runs with no cluster and no GPU.

An in-memory API server (apiserver/), stand-ins for kube-scheduler, kube-controller-manager and kubelet, and the
program that shows the main job on recorded machines. It starts the controller and the plugins as processes, as a
cluster would, and imports neither.
"""
