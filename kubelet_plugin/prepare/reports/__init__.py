"""Who has what, in the forms in which others read it."""
