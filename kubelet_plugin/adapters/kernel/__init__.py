"""What the kernel says about processes and GPUs: cgroups, who has which GPU open, minors, access to MIG devices."""
