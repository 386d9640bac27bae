"""The GPU driver as something that may hang, and that others may want closed."""
