"""Where a pod may run by kube-scheduler's rules about nodes: labels, taints, room, other pods, volumes.

Read in this order: matching (what a node itself says), pod_resources and node_resources (how much of each node is
left), node_filter (the index that finds nodes, and all rules for one pod), placement (other pods and volumes).
docs/design/where-a-pod-may-run.md and where-a-pod-may-run.md
"""
