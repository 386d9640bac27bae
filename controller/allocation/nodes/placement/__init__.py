"""Where a pod may run because of other pods and of its storage: kube-scheduler's rules, applied beforehand.

Values in, values out: PlacedPods counts the pods that rules are about, and the rules of one pod say why a node is unfit
for it (nodes.node_filter asks them). docs/design/where-a-pod-may-run.md
"""
