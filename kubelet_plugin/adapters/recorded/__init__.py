"""Recorded machines in place of NVML, for tests, demonstrations and nodes without GPUs."""
