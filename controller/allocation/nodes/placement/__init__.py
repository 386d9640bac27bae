"""Where a pod may run because of what runs elsewhere, and of its storage: kube-scheduler's rules, asked beforehand.

Values in, values out: PlacedPods counts the pods that rules are about, and the rules of one pod say why a node is
none for it (nodes.node_filter asks them). docs/design/0022-placement.md
"""
