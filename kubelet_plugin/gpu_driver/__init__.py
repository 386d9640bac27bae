"""The GPU driver of this node as a thing that may hang, be asked for, and be replaced: one thread for its calls, who
may have it open, and what of it containers get."""
