"""Several pieces of work at once, in order: a call into the GPU driver waits, and those about other GPUs go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

THREADS: Final = 4
"""The caller's own included. A GPU at work takes some 20 ms: with four threads eight of them take 40 ms where the
driver lets them, within the 50 ms of a scrape. More would take more cores at once from the pods of the node.
"""


def side_by_side(works: Sequence[Callable[[], T]], *, threads: int = THREADS) -> list[T]:
    """Return what each piece of work gives, in their order. Raises what the first of those that failed raised, after
    all have ended.

    The caller takes part and waits for all. So work that never returns holds up the caller as if it had done that
    itself; the threads do not hold up the end of the process. Where no more threads can be had, those that there are do
    it all.
    """
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    left = iter(range(len(works)))
    lock = threading.Lock()

    def take_turns() -> None:
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                return
            try:
                results[number] = works[number]()
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                errors[number] = error

    others: list[threading.Thread] = []
    # A pod at its limit of processes gets no thread. To raise that here would leave the first ones at work unattended.
    with contextlib.suppress(RuntimeError):
        for number in range(1, min(threads, len(works))):
            thread = threading.Thread(target=take_turns, name=f"gpu-driver-{number}", daemon=True)
            thread.start()
            others.append(thread)
    take_turns()
    for thread in others:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(works))]
