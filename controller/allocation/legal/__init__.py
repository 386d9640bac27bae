"""What resource.k8s.io/v1 means: which devices a claim may get. Values in, values out.

Other rooms decide which legal set is the best.

Read in this order: read (the API's objects as values), capacity, compatibility and constraints (the rules that count),
books (who holds what), selectors and cel_selectors (the way to CEL), outcome (the three answers), pools (what a node
can reach), problem (everything about one question), tentative and search (the answer), results (the answer as
documents).

Source of the rules: the resource.k8s.io/v1 reference and the behaviour of k8s.io/dynamic-resource-allocation 1.36;
docs/design/allocator.md lists where we differ on purpose.
"""
