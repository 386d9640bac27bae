"""The threads that answer calls of a gRPC server.

A pool of the standard library starts a thread whenever a call comes while the others are busy, up to its bound. So the
threads of a process grow for as long as it lives, and nobody can tell that from a leak. Here all of them begin at once.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from dracaena.api.errors import PermanentError


class Workers(ThreadPoolExecutor):
    """`count` threads, none before start() and all of them after it: so many calls are answered at a time."""

    def __init__(self, count: int, name: str) -> None:
        """`name` is what the names of the threads begin with."""
        super().__init__(count, thread_name_prefix=name)
        self._count = count
        self._name = name

    def start(self) -> None:
        """Start all threads; call it once. Raises PermanentError if the kernel does not allow so many."""
        all_are_here = threading.Barrier(self._count)
        try:
            for each in [self.submit(all_are_here.wait) for _ in range(self._count)]:
                each.result()
        except RuntimeError as error:
            all_are_here.abort()  # those that wait for the others would keep the process from ending
            raise PermanentError(
                f"cannot start {self._count} threads for {self._name}: {error}; allow this container more processes "
                "(pids limit)"
            ) from error
