"""The value types of the Kubernetes environment beyond CEL's own, with exact arithmetic. Values in, values out."""
