"""What is recorded before it is done: checkpoints of claims, and journals of changes that belong to no claim."""
