"""What to do next: the work queue, its retries and time budgets, and the pods that wait for a change."""
