"""NVIDIA's programs and libraries that run in a process of their own, with a deadline."""
