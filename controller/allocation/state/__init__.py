"""What there is and what is taken. The only room with state: inventory owns all of it but size_demand.

Read in this order: node_state (what a node is, and who holds what), device_kind (a device without its identity), pool
(the devices of one node, as slices describe them), inventory (all nodes, in buckets of one state), emptied (an
inventory without what some holders have), published_names (which attributes there are at all), size_demand (how many
GPUs pods ask for).
"""
