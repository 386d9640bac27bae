"""Which node, with which devices. A pod's demand and the inventory go in, the best choice of the best node comes out.

Read in this order: pod_demand (what the pod asks of the cluster), combinations (one alternative for each request),
eligibility and answers (what all nodes of a kind have to give), node_choice and node_rules (what one node gives by the
rules), judgements (what is remembered of that), walk (the nodes, best bound first), census (what became of the others).
docs/design/0007-allocator.md
"""
