"""Asks the exporter of a node what its GPUs do, when somebody looks at that node."""

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
"""How long figures are shown again to who asks: the page asks as often."""

FAILED_S: Final = 15.0
"""How long a node is not asked again that gave none: one that hangs costs the thread a fifth of its time at most."""

KNOWN_S: Final = 60.0
"""How long the address of an exporter is used before it is looked up again."""

MOST_NODES: Final = 512
"""Nodes of which something is kept; more are open on no page."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Known:
    until_s: float
    told: NodeUses | str


class NodeUse:
    """What is known of each node's use, for a moment. One thread, which waits for exporters: no other part of the page
    may wait for it."""

    def __init__(self, find: Callable[[str], str | None], read: Callable[[str], bytes], clock: Clock) -> None:
        """`find` returns the address of a node's exporter, None: it has none; `read` what that serves as /usage, in
        bounded time. Both raise TemporaryError."""
        self._find, self._read, self._clock = find, read, clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._addresses: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def of(self, node: str) -> NodeUses | str:
        """Return what the GPUs of a node do, or in words why that is not known."""
        now_s = self._clock.monotonic()
        known = self._known.pop(node, None)
        if known is None or known.until_s <= now_s:
            told = self._ask(node)
            kept_s = FAILED_S if isinstance(told, str) else FRESH_S
            known = _Known(self._clock.monotonic() + kept_s, told)
        self._known[node] = known
        if len(self._known) > MOST_NODES:
            self._known.popitem(last=False)
        return known.told

    def _ask(self, node: str) -> NodeUses | str:
        try:
            address = self._address(node)
            if address is None:
                return "no exporter runs on it"
            return read_usage(node, self._read(address))
        except (TemporaryError, BadInputError) as error:
            self._addresses.pop(node, None)  # its pod may have come again elsewhere
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
