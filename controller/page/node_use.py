"""Asks a node's exporter what its GPUs do, while a user looks at that node."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.errors import BadInputError, TemporaryError
from dracaena.controller.views.node_use import NodeUses, read_usage
from dracaena.process.clock import Clock

FRESH_S: Final = 5.0
"""How long figures are reused: the page asks as often."""

FAILED_S: Final = 15.0
"""How long a node without figures is not asked again: one that hangs costs the thread at most a fifth of its time."""

KNOWN_S: Final = 60.0
"""How long the address of an exporter is used before it is looked up again."""

MOST_NODES: Final = 512
"""Nodes of which something is kept: more than are ever open on pages."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _KeptAnswer:
    until_s: float
    answer: NodeUses | str


class NodeUse:
    """What we know of each node's use, kept for a moment. For one thread, which waits for exporters: no other part of
    the page may wait for it."""

    def __init__(self, find: Callable[[str], str | None], read: Callable[[str], bytes], clock: Clock) -> None:
        """`find` returns the address of a node's exporter, None if it has none; `read` what the exporter serves as
        /usage, in bounded time. Both raise TemporaryError."""
        self._find, self._read, self._clock = find, read, clock
        self._known: OrderedDict[str, _KeptAnswer] = OrderedDict()
        self._addresses: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def of(self, node: str) -> NodeUses | str:
        """Return what the GPUs of a node do, or in words why we do not know it."""
        now_s = self._clock.monotonic()
        known = self._known.pop(node, None)
        if known is None or known.until_s <= now_s:
            answer = self._ask(node)
            kept_s = FAILED_S if isinstance(answer, str) else FRESH_S
            known = _KeptAnswer(self._clock.monotonic() + kept_s, answer)
        self._known[node] = known
        if len(self._known) > MOST_NODES:
            self._known.popitem(last=False)
        return known.answer

    def _ask(self, node: str) -> NodeUses | str:
        try:
            address = self._address(node)
            if address is None:
                return "no exporter runs on it"
            return read_usage(node, self._read(address))
        except (TemporaryError, BadInputError) as error:
            self._addresses.pop(node, None)  # its pod may run again elsewhere
            log.debug("no figures from an exporter", node=node, error=str(error))
            return str(error)

    def _address(self, node: str) -> str | None:
        now_s = self._clock.monotonic()
        until_s, address = self._addresses.pop(node, (-1.0, ""))
        if until_s <= now_s:
            found = self._find(node)
            if found is None:
                return None
            until_s, address = now_s + KNOWN_S, found
        self._addresses[node] = (until_s, address)
        if len(self._addresses) > MOST_NODES:
            self._addresses.popitem(last=False)
        return address
