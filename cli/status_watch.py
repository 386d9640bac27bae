"""`dracaena status --watch`: shows the GPUs of a cluster again whenever what is shown has changed."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from dracaena.api.errors import BadInputError
from dracaena.api.mig_layout import ConditionedNode
from dracaena.api.objects import KubeObject, Namespace
from dracaena.api.resource_objects import DeviceTaintRule, DeviceTaintRuleV1Beta2, ResourceClaim, ResourceSlice
from dracaena.cli.columns import shown
from dracaena.cli.node_events import node_events
from dracaena.cli.status import StatusObjects, Wanted, status_lines
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError
from dracaena.kube.reflector import Kept, Reflector
from dracaena.process.clock import Clock, SystemClock, rfc3339

SYNC_S: Final = 3600.0
"""How long one wait for the first lists lasts; the reflectors say on standard error what is wrong meanwhile."""

GAP_S: Final = 1.0
"""What is shown is worked out again no more often, and the Events of nodes read no more often: objects of a large
cluster change many times a second."""

_HOME, _TO_END, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
"""To the first line; erase the rest of this line; erase all below it."""


def follow(client: KubeClient, wanted: Wanted, read: StatusObjects) -> int:
    """Show what was read, then each change, until the command is interrupted (KeyboardInterrupt)."""
    changed = threading.Event()
    caches = _Caches(client, wanted, read, changed)
    lines = status_lines(wanted, read, partial(node_events, client))
    last: Sequence[str] = ()
    caches.start()
    try:
        while True:
            if lines != last:
                _show(lines, as_json=wanted.as_json, is_first=not last)
                last = lines
            caches.wait_synced()
            await_change(changed, SystemClock())
            lines = shown_now(client, wanted, caches.now())
    finally:
        caches.stop()


def await_change(changed: threading.Event, clock: Clock) -> None:
    """Wait for a change, and for those that come within GAP_S after it."""
    changed.wait()
    clock.sleep_until_set(threading.Event(), GAP_S)
    changed.clear()


def shown_now(client: KubeClient, wanted: Wanted, read: StatusObjects) -> Sequence[str]:
    """Return what is shown; while a node that is named is not there, or its Events cannot be read, that."""
    try:
        return status_lines(wanted, read, partial(node_events, client))
    except (BadInputError, KubeError) as error:
        return (json.dumps({"error": str(error)}) if wanted.as_json else str(error),)


class _Caches:
    """What is watched. `changed` is set after each change."""

    def __init__(self, client: KubeClient, wanted: Wanted, read: StatusObjects, changed: threading.Event) -> None:
        self._changed = changed
        ours: Kept[ResourceSlice] = Kept(field_selector=f"spec.driver={wanted.driver}")
        self._nodes = self._of(client, ConditionedNode)
        self._slices = self._of(client, ResourceSlice, ours)
        self._claims = self._of(client, ResourceClaim)
        served: Kept[DeviceTaintRule] = Kept(older=(DeviceTaintRuleV1Beta2,))
        self._rules = None if read.rules is None else self._of(client, DeviceTaintRule, served)
        self._namespaces = self._of(client, Namespace) if read.namespaces else None

    def _of(self, client: KubeClient, kind: type[Any], kept: Kept[Any] | None = None) -> Reflector[Any]:
        def noted(_old: KubeObject | None, _new: KubeObject | None) -> None:
            self._changed.set()

        return Reflector(client, kind, clock=SystemClock(), kept=kept, on_change=noted)

    def _all(self) -> Iterator[Reflector[Any]]:
        yield from (self._nodes, self._slices, self._claims)
        yield from (one for one in (self._rules, self._namespaces) if one is not None)

    def start(self) -> None:
        for reflector in self._all():
            reflector.start()

    def stop(self) -> None:
        for reflector in self._all():
            reflector.stop()

    def wait_synced(self) -> None:
        for reflector in self._all():
            while not reflector.wait_synced(SYNC_S):
                pass

    def now(self) -> StatusObjects:
        return StatusObjects(
            self._nodes.values(),
            self._slices.values(),
            self._claims.values(),
            None if self._rules is None else self._rules.values(),
            () if self._namespaces is None else self._namespaces.values(),
        )


def _show(lines: Sequence[str], *, as_json: bool, is_first: bool) -> None:
    """Redraw a terminal, as much as fits on it; elsewhere print a block, or a line of JSON."""
    if as_json:
        print(json.dumps(json.loads("\n".join(lines))), flush=True)
        return
    printable = [shown(line) for line in (f"as of {rfc3339(SystemClock().now())}", *lines)]
    if not sys.stdout.isatty():
        print("\n".join((*([] if is_first else [""]), *printable)), flush=True)
        return
    columns, rows = shutil.get_terminal_size()
    if len(printable) > rows - 1:
        left = len(printable) - rows + 2
        printable = [*printable[: rows - 2], f"and {left} more lines: name nodes to see less"]
    drawn = "".join(f"{line[:columns]}{_TO_END}\n" for line in printable)
    print(f"{_HOME}{drawn}{_REST}", end="", flush=True)
