"""NVIDIA's programs and libraries, run in processes of their own with a deadline."""
