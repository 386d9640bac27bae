"""Files of admins and of other programs, and whose turn it is to publish."""
