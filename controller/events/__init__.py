"""Kubernetes Events for users."""
