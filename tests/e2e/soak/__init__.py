"""Minutes of faults on a real control plane while an independent checker reads the API: `make e2e-soak`."""
