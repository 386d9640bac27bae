"""What is written down before it is done: checkpoints of claims, and journals of what belongs to no claim."""
