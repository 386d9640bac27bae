"""What the kernel says about this boot and our threads."""
