"""Stand-ins for controllers of kube-controller-manager, one per file and each with its own caches.

They create what the real ones create (names, labels, owners, status) and do no more than their docstrings say.
"""
