"""GPUs in the layouts that a label of the Node names: static MIG layouts and vGPU layouts."""
