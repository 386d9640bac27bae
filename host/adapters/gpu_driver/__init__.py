"""The GPU driver as an installation below a root, and who has it open."""
