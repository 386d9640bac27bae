"""When a key is worked on again whose request to the server failed."""

from __future__ import annotations

from dracaena.controller.workqueue import WorkQueue
from dracaena.kube.errors import KubeError


def put_off(queue: WorkQueue, key: str, error: KubeError | None = None) -> float:
    """Have a key worked on again that failed, with an error or without; return the wait in seconds: what the server
    asks for, else one that grows.

    It does not come before its time, whoever adds it meanwhile: the end of a write changes the claim's record, and that
    alone adds the claim and its pods.
    """
    asked_s = None if error is None else error.retry_after_s
    wait_s = queue.retry(key) if asked_s is None else asked_s
    queue.rest(key, wait_s, even_first=True)
    return wait_s
