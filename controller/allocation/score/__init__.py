"""What sets of GPUs are worth, and which set of one node is the best. Links go in, choices come out.

Read in this order: box (the links of a node, and what each can carry), collective (what a set can carry), set_rates
(the same for every set, looked up, and which sets a policy allows), class_table (all of that for one class of node,
remembered, and what stays free), order (the parts of a score, and in which order they count), shares (how a set is
dealt out among requests), choices (sets best first, and the engine that answers). docs/design/0005-choice.md
"""
