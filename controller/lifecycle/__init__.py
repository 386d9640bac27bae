"""The life of an allocation, as values: which phases it goes through, what is known of its pods, and what follows.

`phases` is the table of what may happen when. `claim_record` is what is known of one claim, `pod_record` of one pod
that is not bound yet. `proof` says who may still be bound with devices that are to go to somebody else, `prospects`
whether an allocation leads anywhere, `giving_way` which of two claims gives a device back, `places` where pods will go,
`own_decision` which allocations are decisions of ours, and `tending` what is to be done next. Values in, values out:
times are passed in, and nothing here waits, locks or writes. docs/design/0020-records.md has the diagram and the
reasons.
"""
