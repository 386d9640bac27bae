"""Counts what became of writes, for metrics.WriteMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from dracaena.kube.errors import AlreadyExistsError, ConflictError, InvalidError, KubeError, NotFoundError

_RESULTS: Final = (
    (AlreadyExistsError, "exists"),
    (ConflictError, "conflict"),
    (InvalidError, "invalid"),
    (NotFoundError, "gone"),
)


@contextmanager
def counted(verb: str, count: Callable[[str, str], None]) -> Iterator[None]:
    """Call `count` after the write in the block with its verb and ok, exists, conflict, invalid, gone or failed."""
    try:
        yield
    except KubeError as error:
        count(verb, next((word for kind, word in _RESULTS if isinstance(error, kind)), "failed"))
        raise
    count(verb, "ok")
