"""Which devices a pod gets. Pure: a snapshot of the cluster goes in, a decision comes out.

Order of the files: snapshot (what there is), node_fit (where the pod may run), demands (what its claims ask for), box
and bandwidth (what links are worth), requirement, scoring, candidates and splitting (which set is best), allocator (all
of it), explanation and result (the decision in words and as documents). Not here: clocks, locks, logs, the API, and any
state that is no memo of a pure function.
"""
