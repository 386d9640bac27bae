"""A page of the controller over HTTP, with a cluster made of values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.page.endpoint import PageEndpoint, PageSource
from dracaena.controller.page.node_use import NodeUse
from dracaena.controller.page.snapshots import LatestSnapshot
from dracaena.controller.views.snapshot import Watched
from dracaena.process.clock import SystemClock
from support.allocation import DRIVER
from support.reviews import ScriptedReviews


class PageCluster:
    """What the page shows. Change it at any time."""

    def __init__(self) -> None:
        self.watched = Watched((), (), ())
        self.pods: dict[str, Pod] = {}
        self.looks = 0
        self.use: NodeUse | None = None
        self.latest = LatestSnapshot(DRIVER, self._look, SystemClock())

    def source(self) -> PageSource:
        return PageSource(DRIVER, self.latest, self.pods.get, self._claim, lambda: "leading", lambda: None, self.use)

    def _look(self) -> Watched:
        watched = self.watched
        self.looks += 1  # after that: who sees what changed has seen one look more than before the change
        return watched

    def _claim(self, key: str) -> ResourceClaim | None:
        return next((claim for claim in self.watched.claims if claim.key == key), None)


@contextlib.contextmanager
def serving_page(cluster: PageCluster, reviews: ScriptedReviews, **how: Any) -> Iterator[PageEndpoint]:
    endpoint = PageEndpoint("127.0.0.1:0", cluster.source(), reviews, SystemClock(), **how)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()
