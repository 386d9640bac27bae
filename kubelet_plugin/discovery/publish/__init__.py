"""A machine → what its node publishes: slices of its pool, and labels."""
