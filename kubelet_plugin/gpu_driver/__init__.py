"""The GPU driver of this node, which may hang, be wanted by others, and be replaced: one thread for its calls, who may
have it open, and what containers get of it."""
