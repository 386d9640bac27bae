"""Runs pieces of work concurrently, with results in order: while one call into the GPU driver waits, others go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

THREADS: Final = 4
"""Including the caller's own. A busy GPU takes some 20 ms: with four threads eight of them take 40 ms if the driver
allows it, within the 50 ms of a scrape. More would take more cores at once from the pods of the node.
"""


def side_by_side(works: Sequence[Callable[[], T]], *, threads: int = THREADS) -> list[T]:
    """Return the results in the order of the work. Raises the error of the first that failed, after all have ended.

    The caller takes part and waits for all. So work that never returns blocks the caller as if it ran there; the
    threads do not delay the end of the process. If no more threads can be started, the existing ones do all the work.
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
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                errors[number] = error

    others: list[threading.Thread] = []
    # A pod at its process limit gets no thread. Raising that here would leave the first threads running unattended.
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
