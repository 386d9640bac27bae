"""What labels of the Node ask for: static MIG layouts, vGPU layouts and modes of confidential computing."""
