"""Measures our choice of GPUs side by side with that of every system before us: `make bench` (docs/dev/bench.md)."""
