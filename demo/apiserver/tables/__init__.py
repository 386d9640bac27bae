"""Tables: objects in the columns that kube-apiserver prints for their kind, as kubectl asks for them.

The descriptions of columns are left empty: nothing but Kubernetes' own documentation would be true to the recorded
answers, and kubectl shows none of them.
"""
