"""What there is and what is taken. The only room with state: inventory owns it, everything else here is a part of it.

Read in this order: node_state (what a node is, and who holds what), device_kind (a device without its identity), pool
(the devices of one node, as slices tell), inventory (all nodes, in buckets of one state), emptied (an inventory without
what somebody holds), published_names (which attributes there are at all).
"""
