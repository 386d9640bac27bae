"""Where a pod may run, as far as kube-scheduler's rules about nodes say: labels, taints, room, other pods, volumes.

Read in this order: matching (what a node itself says, and the index that finds nodes), pod_resources and node_resources
(how much of each node is left), placement (other pods and volumes), node_filter (all of it for one pod).
docs/design/0014-room-on-nodes.md and 0022-placement.md
"""
