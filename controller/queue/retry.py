"""When to work again on a key whose request to the server failed."""

from __future__ import annotations

from typing import Final

from dracaena.controller.queue.workqueue import LONGEST_RETRY_S, WorkQueue
from dracaena.kube.errors import ForbiddenError, InvalidError, KubeError

LONGEST_REFUSED_S: Final = 300.0
"""What a person has to change is seldom changed within seconds, and very many keys may wait for that."""


def retry_later(queue: WorkQueue, key: str, error: KubeError | None = None) -> float:
    """Work on a key again after a failure; return the wait in seconds: what the server asked for, else a back-off.

    The key does not come earlier even if it is added meanwhile: the end of a write changes the claim's record, and that
    alone adds the claim and its pods.
    """
    retry_after_s = None if error is None else error.retry_after_s
    is_for_people = isinstance(error, ForbiddenError | InvalidError)
    longest_s = LONGEST_REFUSED_S if is_for_people else LONGEST_RETRY_S
    wait_s = queue.retry(key, longest_s=longest_s) if retry_after_s is None else retry_after_s
    queue.rest(key, wait_s, even_first=True)
    return wait_s
