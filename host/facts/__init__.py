"""What the GPU driver and the kernel report, unjudged, and what can be wrong with them. Pure."""
