"""Where shares of GPUs go on a node, and whole GPUs beside them (docs/design/shares.md)."""
