"""What sets of GPUs are worth, and which set of one node is the best. Links go in, choices come out.

Read in this order: box and link_rates (the links of a node, and what each can carry), objectives and set_rates (what a
set can carry), class_table (all of that for one class of node, remembered), order (the parts of a score, and in which
order they count), requirement (what a policy demands of a set), candidates and splitting (sets best first, and how one
is dealt out among requests), choices (the engine that answers). docs/design/0005-choice.md
"""
