"""NVML: its library, events and MIG devices."""
