"""What is written to the API server, each write guarded by a resourceVersion."""
