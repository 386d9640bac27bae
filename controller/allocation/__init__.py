"""Which devices a pod gets. Pure: the state of the cluster and a pod go in, a decision comes out.

Each room may import from those before it: score (what sets of GPUs are worth), nodes (where a pod may run), legal (what
resource.k8s.io/v1 allows), request (what claims ask for), state (what there is, and who holds it), walk (which node,
and what it gives). Above them are allocator (one decision), result and explanation (the decision as documents and in
words), earmarks (which node to keep for a pod that waits) and reach (which waiting pods a change may serve). effort,
which bounds all of them, is used everywhere.

Only state.inventory, and what it owns, has state. Everything else that is kept is a memo of a pure function.
"""
