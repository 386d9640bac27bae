"""Which node, with which devices. A pod's demand and the inventory go in, the best choice of the best node comes out.

Read in this order: pod_demand (what the pod asks of the cluster, one alternative for each request), answers (what all
nodes of a kind have to give), node_choice and node_rules (what one node gives by the rules, and what is remembered of
that), walk (the nodes, best bound first), overdue (what is said where that took too long).
docs/design/0007-allocator.md
"""
