"""The machine below the programs of a node: the GPU driver with NVML, the kernel, and files that must survive a crash.

What the kubelet plugin, the exporter and the MPS supervisor share, and nothing that one of them alone needs. `facts` is
pure, each module in `adapters` touches one outside thing, and `gpu_driver` has the services. Nothing here knows a
claim or the Kubernetes API.
"""
