"""The plugin is replaced while pods with claims come and go: forwards, backwards, orderly and by force.

`DRACAENA_E2E_PREVIOUS=folder` names the checkout of an earlier release: its plugin is then the old side. Without it
both sides are this one; what an earlier release reads and writes is held by unit tests of the checkpoint.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from e2e.cluster import Cluster
from e2e.gpu_pods import delete_gpu_pod, listed, seen_inside
from e2e.installation import PLUGIN_PORT, START_S, serves
from e2e.pods import PODS, Pod, claim_spec, container_id, create_pod, create_template, delete_pod
from e2e.processes import Program
from e2e.waiting import eventually

PREVIOUS = os.environ.get("DRACAENA_E2E_PREVIOUS", "")

TEMPLATE = "upgraded"
STREAMS = 3
"""Pods that come and go at a time. With the one that stays they need 4 of the 8 GPUs: none ever waits for another."""

RECREATED_S = 60.0
"""A prepare that failed in a gap is tried again at kubelet's next sync, 10 to 15 s here."""

FAILURES = (
    "failed to prepare dynamic resources",
    *(f"node{call}resources{end}" for call in ("prepare", "unprepare") for end in (": ", " failed")),
)
"""What kubelet says of a claim that failed, in lower case."""

NOT_READ_YET = "no relationship found between node"


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance of the plugin, as one pod of the DaemonSet."""

    name: str
    program: Program
    port: int

    def start(self) -> None:
        """Start it and wait until it would be Ready: then a DaemonSet with maxSurge ends the old one."""
        self.program.start()
        ready = partial(serves, self.port, "/readyz")
        eventually(ready, f"{self.name} is ready", within_s=START_S, programs=(self.program,))


class Instances:
    """Makes instances, each with a pod UID and a port of its own; `earlier` ones are of the earlier release."""

    def __init__(self, cluster: Cluster, ends: ExitStack) -> None:
        self._cluster = cluster
        self._ends = ends
        self._count = 0

    def new(self, *, earlier: bool = False) -> Instance:
        """Return one that is not started."""
        self._count += 1
        number = self._count
        uid = f"00000000-0000-4000-8000-{number:012d}"
        environment = {"PYTHONPATH": str(Path(PREVIOUS) / "src")} if earlier and PREVIOUS else None
        program = self._cluster.installation.another_plugin(uid, PLUGIN_PORT + number, environment)
        self._ends.callback(program.stop)
        return Instance(f"instance {number}", program, PLUGIN_PORT + number)


class Load:
    """Pods with a claim that are made, run and are deleted again and again, inside a `with` block."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ending = threading.Event()
        self._errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, args=(stream,)) for stream in range(STREAMS)]
        self.rounds = [0] * STREAMS
        """Pods of each stream that ran and went."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def wait_rounds(self, more: int) -> None:
        """Wait until each stream has done some more."""
        wanted = [done + more for done in self.rounds]

        def done() -> bool:
            return bool(self._errors) or all(now >= then for now, then in zip(self.rounds, wanted, strict=True))

        eventually(done, f"{more} more pods of each stream came and went", within_s=120.0)

    def _run(self, stream: int) -> None:
        try:
            while not self._ending.is_set():
                pod = Pod(f"load-{stream}-{self.rounds[stream]}", templates={"gpu": TEMPLATE})
                create_pod(self._cluster.api, pod)
                assert len(seen_inside(self._cluster.api, pod).usable) == 1
                delete_pod(self._cluster.api, pod, grace_s=1)
                self.rounds[stream] += 1
        except (AssertionError, OSError) as error:  # what was waited for did not come, or the API is away
            self._errors.append(error)


@pytest.fixture
def instances(installed: Cluster) -> Iterator[Instances]:
    """Take the plugin that all other tests use away, and bring it back after the instances of the test have ended."""
    template = create_template(installed.api, TEMPLATE, claim_spec(1))
    with ExitStack() as ends:
        ends.callback(installed.api.delete, template)
        ends.callback(installed.installation.wait_ready)
        ends.callback(installed.installation.plugin.start)
        yield Instances(installed, ends)


def failed_calls(cluster: Cluster, since: int) -> list[str]:
    """Return what kubelet logs, from a byte on, of claims that it could not prepare or unprepare.

    Left out are those that kubelet itself could not read yet (docs/dev/tests.md): no plugin was asked for them.
    """
    with cluster.node.kubelet.log.open("rb") as log:
        log.seek(since)
        lines = log.read().decode(errors="replace").splitlines()
    told = [line for line in lines if any(word in line.lower() for word in FAILURES)]
    return [line for line in told if NOT_READ_YET not in line]


def sockets(cluster: Cluster) -> set[str]:
    """Return the names of all sockets of our plugins."""
    registry = cluster.node.kubelet_root / "plugins_registry"
    return {path.name for folder in (registry, cluster.installation.plugin_data) for path in folder.glob("*.sock")}


def replaced_by(instances: Instances, old: Instance, end: Callable[[Instance], None], *, earlier: bool) -> Instance:
    """Start a new instance beside the old one, wait until it is ready, end the old one: maxSurge 1."""
    new = instances.new(earlier=earlier)
    new.start()
    end(old)
    return new


def test_no_prepare_fails_while_the_plugin_is_replaced_again_and_again(
    installed: Cluster, instances: Instances
) -> None:
    """Up, down, up; orderly twice, by force once. One pod stays all the time and keeps what it has."""
    first = instances.new(earlier=True)
    first.start()  # beside the plugin of all other tests, which has the plain socket names: an upgrade like any other
    installed.installation.plugin.stop()
    staying = Pod("staying", templates={"gpu": TEMPLATE})
    create_pod(installed.api, staying)
    numbers = seen_inside(installed.api, staying).usable
    container = container_id(installed.api, staying)
    since = installed.node.kubelet.log_size()
    with Load(installed) as load:
        load.wait_rounds(1)
        second = replaced_by(instances, first, lambda old: old.program.stop(), earlier=False)
        load.wait_rounds(1)
        third = replaced_by(instances, second, lambda old: old.program.stop(), earlier=True)
        load.wait_rounds(1)
        last = replaced_by(instances, third, lambda old: old.program.kill(), earlier=False)
        load.wait_rounds(1)
    assert failed_calls(installed, since) == []
    assert container_id(installed.api, staying) == container
    assert listed(installed, staying) == numbers
    assert [pod["metadata"]["name"] for pod in installed.api.items(PODS)] == ["staying"]
    assert last.program.is_running
    delete_gpu_pod(installed, staying)
    assert list((installed.installation.plugin_data / "claims").glob("*")) == []
    assert installed.installation.cdi_specs() == []


def test_pods_wait_for_a_plugin_that_is_killed_before_the_next_one_comes(
    installed: Cluster, instances: Instances
) -> None:
    """maxUnavailable 1: there is a gap, and what kubelet could not do in it is done after it. Nothing stays behind."""
    first = instances.new()
    first.start()
    installed.installation.plugin.stop()
    leaving, coming = (Pod(name, templates={"gpu": TEMPLATE}) for name in ("leaving", "coming"))
    create_pod(installed.api, leaving)
    seen_inside(installed.api, leaving)
    first.program.kill()
    installed.api.delete(leaving.path, grace_s=1)
    create_pod(installed.api, coming)
    second = instances.new()
    second.start()
    assert len(seen_inside(installed.api, coming).usable) == 1
    eventually(lambda: installed.api.find(leaving.path) is None, "the old pod goes", within_s=RECREATED_S)
    uid = second.program.name.removeprefix("dracaena-kubelet-plugin-")
    eventually(lambda: all(uid in name for name in sockets(installed)), "no socket of the dead is left", within_s=5.0)
    delete_gpu_pod(installed, coming)
    assert list((installed.installation.plugin_data / "claims").glob("*")) == []
