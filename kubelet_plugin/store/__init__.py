"""What prepared claims leave on this node's disk, and what that says: which devices are taken, by whom."""
