"""Kubelet's sockets."""
