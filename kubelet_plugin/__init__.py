"""Runs on each node: publishes its GPUs as ResourceSlices, and prepares and unprepares claims for kubelet.

The modules at this level are services: state, order, locks, retries, logs. discovery/ and prepare/ are pure. Each
module in adapters/ touches one outside thing. Nothing here imports the controller: the two programs share only the
ResourceSlice and the claim's allocation.
"""
