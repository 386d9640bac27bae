"""What the plugin costs a node: `make bench-node` (docs/dev/bench.md)."""
