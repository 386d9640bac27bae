"""What the kernel says about itself and processes: boot, cgroups, threads, who has which GPU open, minors of GPUs."""
