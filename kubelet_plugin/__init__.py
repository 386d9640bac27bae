"""One per node: publishes the node's GPUs as ResourceSlices, and prepares and unprepares claims for kubelet.

The modules of this level are services: state, order, locks, retries, logs. discovery/ and prepare/ are pure.
adapters/ touch one outside thing each. Nothing here imports the controller: the ResourceSlice and the claim's
allocation are all that the two programs share.
"""
