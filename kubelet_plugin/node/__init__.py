"""This node: its machine as it was last read, what is published of it, what is told of it, and its Node object."""
