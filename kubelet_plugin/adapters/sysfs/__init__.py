"""PCI devices, their drivers and vGPUs, as /sys shows and takes them."""
