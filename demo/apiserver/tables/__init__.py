"""Tables: objects in the columns that kube-apiserver prints for their kind, as kubectl asks for them.

The descriptions of columns are left empty: only Kubernetes' own documentation would match the recorded answers, and
kubectl does not show them.
"""
