"""Our own files and those of admins, and locks on them."""
