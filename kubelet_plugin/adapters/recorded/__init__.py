"""Recorded machines instead of NVML, for tests, demonstrations and nodes without GPUs."""
