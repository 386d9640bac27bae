"""GPUs in the mode of confidential computing that a label of the Node names."""
