"""Watches that begin only when everything else is done, as on a node whose API server answers one of them late, and
readings that begin as late, as on a node whose GPU driver does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from dracaena.api.objects import KubeObject, Node, Pod
from dracaena.api.resource_objects import ResourceSlice
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.node.live_machine import LiveMachine
from dracaena.kubelet_plugin.worker import Worker
from support.kube import wait_for
from support.nvml_world import NvmlNode

WATCHED: tuple[type[KubeObject], ...] = (Node, Pod, ResourceSlice)
"""What a plugin watches."""

SOME_S = 0.1
"""Shorter pauses gather changes."""


@contextmanager
def late_watch(kind: type[KubeObject]) -> Iterator[Callable[[], None]]:
    """Give what begins the watches of a kind: whoever starts one inside the block does not."""
    held: list[Reflector[Any]] = []
    start = Reflector.start

    def hold(self: Reflector[Any]) -> None:
        if self.resource == kind.RESOURCE:
            held.append(self)
        else:
            start(self)

    def begin() -> None:
        assert held, f"nobody watches {kind.RESOURCE}"
        for each in held:
            start(each)

    with patch.object(Reflector, "start", hold):
        yield begin


def start_without_pods(node: NvmlNode) -> None:
    """Start a plugin that never sees the pods of its node, and wait until it has done all else: it does not sweep."""
    with late_watch(Pod):
        node.program.start()
    node.world.register()
    node.until(lambda: "the first list of pods" in (node.program.ready() or ""), "all but the pods is known")


@contextmanager
def late_reading() -> Iterator[Callable[[], None]]:
    """Give what begins to read the GPUs: whoever starts that inside the block does not."""
    held: list[LiveMachine] = []
    start = LiveMachine.start

    def hold(self: LiveMachine) -> None:
        held.append(self)

    def begin() -> None:
        for each in held:
            start(each)

    with patch.object(LiveMachine, "start", hold):
        yield begin


@contextmanager
def seen_to_rest() -> Iterator[Collection[str]]:
    """Give the names of the workers that have begun a pause of some seconds since."""
    names: set[str] = set()
    pause = Worker.pause

    def noting(self: Worker, seconds: float) -> bool:
        if seconds >= SOME_S:
            names.add(threading.current_thread().name)
        return pause(self, seconds)

    with patch.object(Worker, "pause", noting):
        yield names


def start_with_late_watch(node: NvmlNode, kind: type[KubeObject]) -> None:
    """Start a plugin, and let one watch begin when the GPUs have been read. It must be ready without any pause: no time
    passes meanwhile."""
    with late_watch(kind) as begin:
        node.program.start()
        node.world.register()
        wait_for(lambda: "has not been asked yet" not in (node.program.ready() or ""), "the GPUs were read")
        assert node.program.ready() is not None, "the watch is missing"
        begin()
        wait_for(lambda: node.program.ready() is None, f"ready after {kind.RESOURCE} were seen")
