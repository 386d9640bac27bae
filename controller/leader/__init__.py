"""Which replica writes, and how it begins to write."""
