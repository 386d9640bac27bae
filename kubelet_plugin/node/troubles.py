"""Reports what is wrong with this node's driver and GPUs: in an Event when it begins, in /readyz while it lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

import structlog

from dracaena.host.facts.troubles import Trouble, TroubleKind
from dracaena.kube.events import EventType
from dracaena.kubelet_plugin.metrics import PluginMetrics

log = structlog.get_logger()


class NodeTroubles:
    """Merges what several sources find. For any thread; never blocks.

    A trouble begins when the first source reports it and ends when the last one no longer does. That is one occurrence,
    even if its text changes meanwhile, and `tell` is called once for it.
    """

    def __init__(self, metrics: PluginMetrics, tell: Callable[[EventType, str, str], None]) -> None:
        self._metrics = metrics
        self._tell = tell
        self._lock = threading.Lock()
        self._found: dict[str, tuple[Trouble, ...]] = {}
        self._count({})

    def update(self, source: str, found: Iterable[Trouble], unseen: Iterable[Trouble] = ()) -> None:
        """Record everything that one source reports now. It could not look at what `unseen` is about: of that, what it
        reported before stays.
        """
        kept = {each.identity for each in unseen}
        with self._lock:
            before = self._all()
            stay = [each for each in self._found.get(source, ()) if each.identity in kept]
            self._found[source] = (*found, *stay)
            now = self._all()
            self._count(now)
            # Under the lock, so that two sources that find the same thing at once report it in order.
            for identity, trouble in now.items():
                if identity not in before:
                    self._tell_begin(trouble)
            for identity, trouble in before.items():
                if identity not in now:
                    log.info("trouble over", reason=trouble.reason, subject=trouble.subject or None)

    def words(self) -> str | None:
        """Return all that is wrong as one text, None if nothing is."""
        with self._lock:
            found = sorted(self._all().values())
        return "; ".join(f"{trouble.reason}: {trouble.text}" for trouble in found) or None

    def _tell_begin(self, trouble: Trouble) -> None:
        log.warning("trouble", reason=trouble.reason, subject=trouble.subject or None, text=trouble.text)
        kind: EventType = "Normal" if trouble.reason == TroubleKind.RELEASED.value else "Warning"
        self._tell(kind, trouble.reason, trouble.advice)

    def _all(self) -> Mapping[tuple[str, str], Trouble]:
        return {t.identity: t for source in sorted(self._found) for t in self._found[source]}

    def _count(self, now: Mapping[tuple[str, str], Trouble]) -> None:
        for reason in TroubleKind:
            count = sum(1 for trouble in now.values() if trouble.reason == reason.value)
            self._metrics.node.troubles.labels(reason.value).set(count)
