"""Watches that begin only when everything else is done, as on a node whose API server answers one of them late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from dracaena.api.objects import KubeObject, Node, Pod
from dracaena.api.resource_objects import ResourceSlice
from dracaena.kube.reflector import Reflector
from support.kube import wait_for
from support.nvml_world import NvmlNode

WATCHED: tuple[type[KubeObject], ...] = (Node, Pod, ResourceSlice)
"""What a plugin watches."""


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
