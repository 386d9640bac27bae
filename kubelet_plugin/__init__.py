"""Runs on each node: publishes its GPUs as ResourceSlices, and prepares and unprepares claims for kubelet.

device_kinds/, discovery/ and prepare/ are pure, and each module in adapters/ touches one outside thing. The other
folders are services: state, order, locks, retries, logs. Nothing here imports the controller: the two programs share
only the ResourceSlice and the claim's allocation.
"""
