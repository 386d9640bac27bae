"""Who has what on this node, by what prepared claims keep on its disk."""
