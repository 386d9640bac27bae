"""The GPU driver of this node, which is released on request, lent while a GPU leaves it, and replaced: who asks for
that, and what containers get of it."""
