"""One outside thing each: the GPU driver, podlist.json, the cgroups of processes."""
