"""What users are told in Kubernetes Events."""
