"""Who has what, in the formats that others read."""
