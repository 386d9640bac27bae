"""Closes the GPU driver on this node for the seconds in which a GPU leaves it: the kernel waits for open handles.

NVML opens all GPUs, so ours is closed in the driver's own thread, which nothing else uses meanwhile; a lock tells the
exporter and nvidia-smi. Handles that are still open belong to others; errors name their owners.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from dracaena.api.errors import DracaenaError
from dracaena.host.gpu_driver.thread import StoppedError, WedgedError
from dracaena.kubelet_plugin.ports import Ask, EffectPendingError

OTHERS_S: Final = 5.0
"""Longest wait for other processes of ours to close the driver: they look once a second."""
CLOSED_S: Final = 10.0
"""Longest that the driver's thread may take if there is nothing to do but that wait."""
LENT_S: Final = 30.0
"""Longest that the driver's thread may take in all: that wait, and for each GPU of a claim a look at all open files and
two writes, usually less than a second. If it takes longer, the next call continues."""


class GpuDriverLending:
    """Implements WithoutGpuDriver of changes.kinds.vfio_gpus. From any thread."""

    def __init__(
        self,
        ask: Ask,
        close: Callable[[], None],
        lend: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`ask` runs work in the driver's thread (LiveMachine.ask), `close` closes NVML there, `lend` asks others."""
        self._ask = ask
        self._close = close
        self._lend = lend

    def open_anew(self) -> None:
        """Close NVML on this node, which shows the GPUs from when it was opened: the next call opens it again."""
        with contextlib.suppress(DracaenaError):  # a driver that hangs is closed, and reread, once it answers
            self._closed("closing NVML, as GPUs have moved", lambda: None, CLOSED_S)

    def __call__(self, what: str, work: Callable[[], None]) -> None:
        """See WithoutGpuDriver. Raises EffectPendingError if the driver does not answer: the work may still be done."""
        try:
            self._closed(what, work, LENT_S)
        except (WedgedError, StoppedError) as error:
            raise EffectPendingError(f"{what}: {error}") from error

    @contextlib.contextmanager
    def closed(self, what: str) -> Iterator[None]:
        """Keep the driver closed on this node for a block of the caller's thread, which may take minutes: calls to the
        driver meanwhile fail, saying that it is lent. Raises TemporaryError if it is not released.
        """
        turn, lent, given_up = threading.Lock(), contextlib.ExitStack(), False

        def begin() -> None:
            with contextlib.ExitStack() as entering:
                entering.enter_context(self._lend())
                with turn:
                    if not given_up:  # otherwise nothing would ever end it
                        lent.push(entering.pop_all())

        try:
            self._closed_then(what, begin, CLOSED_S)
        except BaseException:
            with turn:
                given_up = True
            lent.close()
            raise
        with lent:
            yield

    def _closed_then(self, what: str, work: Callable[[], None], deadline_s: float) -> None:
        def closed() -> None:
            self._close()
            work()

        self._ask(what, closed, deadline_s)

    def _closed(self, what: str, work: Callable[[], None], deadline_s: float) -> None:
        def lent() -> None:
            with self._lend():
                work()

        self._closed_then(what, lent, deadline_s)
