"""The life of an allocation, as values: which phases it goes through, what is known of its pods, and what follows.

`phases` is the table of which event may happen in which phase. `claim_record` is what we know about one claim and where
its pods will go, `pod_record` what we know about one unbound pod. `proof` says which pods may still be bound with
devices that are about to go to another pod, `prospects` whether an allocation will get its pod bound, `giving_way`
which of two claims gives a device back, `own_allocation` which allocations are our decisions, `versions` which of two
states is newer, and `tending` what the next step is. Values in, values out: times are passed in, and nothing here
waits, locks or writes. docs/design/allocation-lifecycle.md has the diagram and the reasons.
"""
