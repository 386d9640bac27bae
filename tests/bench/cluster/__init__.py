"""Pods bound per second on a real control plane, with our controller and without: `make bench-cluster`."""
