"""A work queue seen by one thread, which must not wait."""

from __future__ import annotations

from dracaena.controller.queue.workqueue import WorkQueue


def take_ready(queue: WorkQueue) -> str | None:
    """Take a key as get() does; None when it would have to wait."""
    with queue._condition:
        return queue._take_ready()
