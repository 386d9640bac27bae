"""Which parts of which GPUs a pod gets on a node, and whole GPUs beside them (docs/design/mig.md)."""
