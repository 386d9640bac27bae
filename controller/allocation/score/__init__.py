"""What sets of GPUs are worth, and which set of one node is the best. Links go in, choices come out.

Read in this order: box (the links of a node, which of its GPUs can change places, and which sets a policy allows),
nominal_rates (what each link carries), collective (what a set can carry), box_tables and class_table (the same for
every set of one class of node, worked out and remembered, and what stays free), order (the parts of a score and the
order in which they count), shares (how a set is divided among requests), choices (sets best first, and the engine that
answers). docs/design/choice-on-a-node.md
"""
