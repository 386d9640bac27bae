"""Stand-ins for the controllers of kube-controller-manager that have a room of their own, each with its own caches.

They make what the real ones make (names, labels, owners, status) and do no more than their docstrings say.
"""
