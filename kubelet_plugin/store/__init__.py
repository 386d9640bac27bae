"""What prepared claims keep on this node's disk, and what follows from it: which devices are taken, and by whom."""
