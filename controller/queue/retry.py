"""When to work again on a key whose request to the server failed."""

from __future__ import annotations

from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.kube.errors import KubeError


def retry_later(queue: WorkQueue, key: str, error: KubeError | None = None) -> float:
    """Work on a key again after a failure; return the wait in seconds: what the server asked for, else a back-off.

    The key does not come earlier even if it is added meanwhile: the end of a write changes the claim's record, and that
    alone adds the claim and its pods.
    """
    retry_after_s = None if error is None else error.retry_after_s
    wait_s = queue.retry(key) if retry_after_s is None else retry_after_s
    queue.rest(key, wait_s, even_first=True)
    return wait_s
