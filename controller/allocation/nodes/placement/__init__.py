"""Where a pod may run because of what runs elsewhere, and of its storage: kube-scheduler's rules, asked beforehand.

Values in, values out: PlacedPods counts the pods that rules are about, and PlacementDemand says of one pod why a node
is none for it. docs/design/0022-placement.md
"""
