"""The kubelet's gRPC interfaces: our own .proto files and the code generated from them, nothing written by hand.

Only the plugin's gRPC adapters and the demo's kubelet stand-in may import this. README.md says how to regenerate.
"""
