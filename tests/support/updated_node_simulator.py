"""A node on which everything happens in any order, while the plugin is updated: two instances of it run side by side,
and each call comes to either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.node_simulator import Simulator

OTHER_INSTANCE = 0.4
"""How often a call comes to the older instance, while there are two."""


class UpdatedSimulator(Simulator):
    def __post_init__(self) -> None:
        self.older: Any = None
        super().__post_init__()

    def load_gpu_driver(self) -> None:
        super().load_gpu_driver()
        if self.older is not None:
            self.show_minors(self.older)
            self.read_gpus(self.older)

    def begin_update(self) -> None:
        """The next instance starts, and the one before goes on to answer."""
        before = self.node
        self.restart_plugin()
        self.older = before if self.node is not None else None

    def end_update(self) -> None:
        self.older = None

    def call(self, work: Callable[[Any], Any]) -> bool:
        if self.older is None or self.beside.random() > OTHER_INSTANCE:
            return self.call_newer(work)
        self.node, self.older = self.older, self.node
        try:
            return self.call_newer(work)
        finally:
            self.node, self.older = self.older, self.node

    def call_newer(self, work: Callable[[Any], Any]) -> bool:
        return super().call(work)

    def look(self) -> None:
        """The watch is the newer one's."""
        self.call_newer(lambda _: self.watch.look())

    def things(self) -> dict[Callable[[], None], int]:
        return {**super().things(), self.begin_update: 1, self.end_update: 1}

    def drain(self) -> None:
        self.older = None
        super().drain()
