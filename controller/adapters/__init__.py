"""The controller's outside things, one file each: they translate and nothing more."""
