"""This node: its machine as last read, what is published and reported of it, and its Node object."""
