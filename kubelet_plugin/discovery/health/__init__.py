"""What is wrong with GPUs and their driver, and what it means."""
