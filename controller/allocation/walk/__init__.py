"""Which node, with which devices. A pod's demand and the inventory go in, the best choice of the best node comes out.

Read in this order: pod_demand (what the pod asks of the cluster, one alternative for each request), answers (what all
nodes of a kind have to give), judgements (what is remembered about single nodes), walk (the nodes, best bound first),
family (which of them a pod's siblings make better), node_rules and node_choice (how the rules answer for one node),
places (where whole GPUs go there, and the fractions of GPUs that shares and partitions deal out), overdue (the answer
when that took too long). Only for explanations: lasting (what a node could never give), mistakes (what authors most
likely got wrong) and ignored (what has no effect in claims). docs/design/allocator.md
"""
