"""The central controller: gives each pod the set of GPUs that is linked best, and writes it into its claims.

Services stand here: they own state, order, retries, locks and logs. `allocation/` is pure and decides; `adapters/`
talks to the Kubernetes API. All truth is in the API: a controller that was killed at any moment is replaced by a new
one that reads everything afresh and goes on.
"""
