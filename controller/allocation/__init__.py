"""Which devices a pod gets. Pure: the state of the cluster and a pod go in, a decision comes out.

Each room may import from those before it: score (what sets of GPUs are worth), nodes (where a pod may run), legal (what
resource.k8s.io/v1 allows), request (what claims ask for), state (what there is, and who holds it), walk (which node,
and what it gives). Above them are allocator (one decision), result and explanation (the decision as documents and in
words), gang (one decision for many pods), earmarks (which node to keep for a pod that waits) and reach (which waiting
pods a change may serve). effort, which bounds all of them, is used everywhere.

What the cluster is like is known to state.inventory, and what it owns, alone. Of its own the allocator keeps the prices
that it was given last (Allocator.reprice) and the nodes that a pod's overdue attempts have tried (effort.Rounds).
Everything else that is kept is a memo of a pure function.
"""
