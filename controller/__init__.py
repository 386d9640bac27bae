"""The central controller: gives each pod the set of GPUs that is linked best, and writes it into its claims.

`wiring` builds the parts, and `program` starts and stops them. `watches` names what is watched, `workers` is what each
worker thread does, and `reconciler` gets one pod its devices. `state` is what we know, under one lock; `queue` what to
do next; `write` and `events` what goes to the API server; `leader` which replica may write; `page` what people see in a
browser. `allocation`, `lifecycle`, `cache` and `views` are pure: they decide where, what follows, what is kept in
memory, and what the page shows. So is `simulation`: what all of it would do with a cluster in files. `adapters` talks
to the Kubernetes API.

All truth is in the API: a controller that is killed at any moment is replaced by a new one that reads everything afresh
and goes on.
"""
