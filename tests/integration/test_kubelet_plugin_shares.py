"""The whole plugin holds shares to their part: time slices by a stand-in for nvidia-smi, memory limits by a fake NVML
of driver R615 and a cgroup tree in a folder.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.node.health_monitor import EVENTS_S
from dracaena.kubelet_plugin.node.live_machine import REREAD_S
from dracaena.kubelet_plugin.worker import Worker
from support.api_ground import ApiGround
from support.fake_memory_limits import NONE_BYTES, CgroupTree, MemoryLimitingNvml
from support.fake_nvidia_smi import NvidiaSmiRoot
from support.gpu_lists import gpu_list
from support.late_watch import late_watch
from support.nvml_world import RECORDED, NvmlNode, nvml_world, taints
from support.plugin import share_of, sharing_config
from support.plugin_world import DRIVER, NODE, World

GIB = 1 << 30


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        yield made


class Ground:
    def __init__(self, world: World, driver_version: str = "615.10") -> None:
        self.world = world
        self.tree = CgroupTree(world.folder / "cgroup")
        self.smi = NvidiaSmiRoot(world.folder, *(gpu.uuid for gpu in RECORDED.gpus), root=world.folder / "host")
        gpus = tuple(replace(gpu, memory_bytes=80 * GIB) for gpu in RECORDED.gpus)
        self.nvml = MemoryLimitingNvml(replace(RECORDED, driver_version=driver_version, gpus=gpus))
        self.start()

    def start(self) -> None:
        self.node = NvmlNode(self.world, cgroup_root=str(self.tree.root), gpus=gpu_list(shared="all"))
        self.node.nvml = self.nvml
        self._others = frozenset(threading.enumerate())
        self.node.program.start()

    def share(self, name: str, **sharing: str) -> ResourceClaim:
        pod = self.world.pod(f"{name}-pod", name)
        self.tree.add(pod.metadata.uid)
        share = share_of("10Gi", share_id=f"00000000-0000-4000-8000-{sum(name.encode()):012}")
        return self.world.allocated_claim(name, [0], pod, config=[sharing_config(**sharing)], **share)

    def prepare(self, claim: ResourceClaim) -> str:
        return self.world.prepare(claim)[claim.metadata.uid].error

    def thread_names(self) -> set[str]:
        """Of the plugin alone: one that was stopped may leave threads behind that end later. Those that the server
        has for its connections have no name of their own.
        """
        new = {thread.name for thread in threading.enumerate() if thread not in self._others}
        return {name for name in new if not name.startswith("Thread-")}

    def limits(self) -> list[int]:
        """Hard limits of pods, smallest first."""
        return sorted(hard for _, hard in self.nvml.limits.values() if hard != NONE_BYTES)


@pytest.fixture
def ground(world: World) -> Iterator[Ground]:
    made = Ground(world)
    try:
        made.node.ready()
        yield made
    finally:
        made.node.stop()


def test_shares_bring_no_thread_of_their_own(ground: Ground) -> None:
    there = ground.thread_names()
    assert "share-renewal" in there
    claim = ground.share("one", strategy="TimeSlicing", interval="Long")
    assert ground.prepare(claim) == ""
    assert ground.world.unprepare(claim) == {claim.metadata.uid: ""}
    assert ground.thread_names() == there


def test_shares_are_held_from_prepare_to_unprepare_and_for_pods_that_come_later(ground: Ground) -> None:
    claim = ground.share("one", strategy="TimeSlicing", interval="Long")
    assert ground.prepare(claim) == ""
    assert ground.limits() == [10 * GIB]
    assert ground.smi.interval(RECORDED.gpus[0].uuid) == "Long"
    later = ground.world.further_pod("later", claim)
    ground.tree.add(later.metadata.uid)
    ground.node.until(lambda: ground.limits() == [10 * GIB] * 2, "the limit of the pod that came later")
    assert ground.world.unprepare(claim) == {claim.metadata.uid: ""}
    assert ground.limits() == []
    assert ground.smi.interval(RECORDED.gpus[0].uuid) == "Default"


def test_time_slices_of_a_claim_that_left_nothing_but_a_note_are_restored(ground: Ground) -> None:
    claim = ground.share("one", strategy="TimeSlicing", interval="Long")
    assert ground.prepare(claim) == ""
    ground.node.stop()
    (checkpoint,) = ground.world.kubelet.rglob(f"{claim.metadata.uid}.json")
    checkpoint.write_bytes(b"rubbish")
    ground.world.client.delete(Pod, "one-pod", namespace="default")
    ground.world.client.delete(ResourceClaim, "one", namespace="default")
    with late_watch(Pod):  # until the pods are known, nothing is swept
        ground.start()
    assert ground.world.unprepare(claim) == {claim.metadata.uid: ""}
    assert ground.smi.interval(RECORDED.gpus[0].uuid) == "Default"


@pytest.mark.parametrize("plugin", ["runs on", "is started again"])
def test_a_driver_that_is_loaded_anew_under_prepared_shares_holds_them_again(ground: Ground, plugin: str) -> None:
    world, released = ground.world, [("driver-released", "", "NoSchedule")]
    claim = ground.share("one", strategy="TimeSlicing", interval="Long")
    assert ground.prepare(claim) == ""
    world.client.merge_patch(Node, NODE, {"metadata": {"labels": {f"{DRIVER}/release-driver": "true"}}})
    ground.node.until(lambda: all(found == released for found in taints(ground.node).values()), "tainted", EVENTS_S)
    ground.node.until(lambda: ground.nvml.opened == 0, "the driver is released")
    if plugin == "is started again":
        ground.node.stop()
    ground.nvml.limits.clear()
    ground.smi.forget()
    if plugin == "is started again":
        ground.start()
    world.client.merge_patch(Node, NODE, {"metadata": {"labels": {f"{DRIVER}/release-driver": None}}})
    ground.node.until(lambda: ground.limits() == [10 * GIB], "the limit again", REREAD_S / 4)
    ground.node.until(lambda: ground.smi.interval(RECORDED.gpus[0].uuid) == "Long", "the interval again", 1.0)
    assert world.unprepare(claim) == {claim.metadata.uid: ""}
    assert ground.limits() == []
    assert ground.smi.interval(RECORDED.gpus[0].uuid) == "Default"


def test_what_sets_limits_is_stopped_before_the_driver_that_it_asks(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    stop = Worker.stop

    def noting(self: Worker) -> None:
        stopped.append(self._thread.name)
        stop(self)

    monkeypatch.setattr(Worker, "stop", noting)
    ground.node.stop()
    asking = ["share-renewal", "live-machine"]
    assert [name for name in stopped if name in asking] == asking


def test_an_older_driver_is_named_in_the_refusal(world: World) -> None:
    ground = Ground(world, "580.65.06")
    try:
        ground.node.ready()
        error = ground.prepare(ground.share("one", strategy="TimeSlicing"))
        assert "nothing on this node enforces 10Gi of memory" in error
        assert "GPU driver 580.65.06 has no memory limits for pods, which came with R615" in error
        assert ground.prepare(ground.share("two", strategy="TimeSlicing", enforcement="BestEffort")) == ""
        assert ground.limits() == []
    finally:
        ground.node.stop()
