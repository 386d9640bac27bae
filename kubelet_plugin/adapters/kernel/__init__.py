"""What the kernel says of itself and of processes: boot, cgroups, threads, who has which GPU open, which minors GPUs
have."""
