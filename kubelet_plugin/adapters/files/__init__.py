"""Files of ours and of admins, and locks on them."""
