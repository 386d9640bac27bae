"""Who is told that the devices of prepared claims moved, and what is looked at again and again."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from dracaena.kubelet_plugin.upkeep.device_watch import GATHER_S, LOOK_EVERY_S, MOVED, SET_ASIDE, VANISHED, DeviceWatch
from support.kube import wait_for
from support.late_watch import seen_to_rest
from support.nvml_world import RECORDED
from support.passthrough import passthrough_claim, passthrough_gpu, passthrough_pool
from support.plugin import FakeClaims, FakePods, PluginNode, device_name, make_claim, make_pod, make_pool, reference_to

CLAIM = make_claim("claim", (1,), reserved_for={"pod": "pod-uid", "ended": "ended-uid"})
LOW = make_claim("low", (0,))


class Watched:
    """A node with a watch over its devices, and what was told."""

    def __init__(self, folder: Path) -> None:
        self.node = PluginNode(folder, FakeClaims(CLAIM, LOW), FakePods(make_pod(), make_pod("ended", phase="Failed")))
        self.told = self.node.events.users
        self.watch = DeviceWatch(self.node.context, self.node.recovery, self.node.pods)

    def renumber(self) -> None:
        """GPU 0 is gone: GPU 1 has its number now."""
        gpus = {device_name(1): replace(make_pool().gpus[device_name(1)], minor=0, index=0)}
        self.node.pool = PublishedPool(self.node.pool.driver, self.node.pool.name, gpus)

    def gauge(self, name: str) -> float:
        return self.node.registry.get_sample_value(name) or 0.0


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_claim_and_running_pods_are_told_once_that_they_hold_a_moved_device(watched: Watched) -> None:
    watched.node.state.prepare(reference_to(CLAIM))
    watched.watch.look()
    assert watched.told == []
    watched.renumber()
    for _ in range(3):
        watched.watch.look()
    ((claim, pods, reason, text),) = watched.told
    assert (claim, pods, reason) == ("claim", ["pod"], MOVED)
    assert f"containers that were started before may have /dev/nvidia1, which was {device_name(1)}. Delete the" in text
    assert watched.gauge("dracaena_plugin_claims_with_moved_devices") == 1
    watched.node.state.unprepare(reference_to(CLAIM))
    watched.watch.look()
    assert watched.gauge("dracaena_plugin_claims_with_moved_devices") == 0


def test_a_pod_that_comes_later_is_told_as_well(watched: Watched) -> None:
    watched.node.pods.delete(make_pod())
    watched.node.state.prepare(reference_to(CLAIM))
    watched.renumber()
    watched.watch.look()
    watched.node.pods.add(make_pod())
    watched.watch.look()
    assert [(claim, pods) for claim, pods, _, _ in watched.told] == [("claim", []), ("claim", ["pod"])]


def test_whose_containers_are_in_the_way_is_told_by_name_in_the_same_namespace_only(watched: Watched) -> None:
    hidden = msgspec.structs.replace(LOW, metadata=msgspec.structs.replace(LOW.metadata, namespace="hidden"))
    watched.node.claims.put(hidden)
    for claim in (CLAIM, hidden):
        watched.node.state.prepare(reference_to(claim))
    watched.renumber()
    watched.watch.look()
    told = {(claim, reason): text for claim, _, reason, text in watched.told}
    assert "which containers of a claim of another namespace (UID low-uid) still have" in told["claim", SET_ASIDE]
    assert not any("hidden" in text for (claim, _), text in told.items() if claim == "claim")


def test_a_claim_that_is_set_aside_says_why_and_what_helps(watched: Watched) -> None:
    for claim in (CLAIM, LOW):
        watched.node.state.prepare(reference_to(claim))
    watched.renumber()
    watched.watch.look()
    told = {(claim, reason): text for claim, _, reason, text in watched.told}
    assert set(told) == {("claim", MOVED), ("claim", SET_ASIDE), ("low", MOVED), ("low", SET_ASIDE)}
    assert f"this node has no device {device_name(0)}" in told["low", SET_ASIDE]
    assert "delete the pods of that claim" in told["claim", SET_ASIDE]
    assert watched.gauge("dracaena_plugin_claims_set_aside") == 2
    watched.node.state.unprepare(reference_to(LOW))
    watched.watch.look()
    assert watched.gauge("dracaena_plugin_claims_set_aside") == 0
    assert b"/dev/nvidia0" in watched.node.files()["cdi/gpu.dracaena.dev-claim_claim-uid.json"]


def test_a_claim_whose_mig_device_is_gone_is_told_and_counted(watched: Watched) -> None:
    watched.node.state.prepare(reference_to(CLAIM))
    (device,) = watched.node.node_claims.prepared()[0].devices
    there = watched.node.pool
    watched.node.pool = replace(there, vanished={device.device: device.uuid})
    for _ in range(3):
        watched.watch.look()
    ((claim, pods, reason, text),) = watched.told
    assert (claim, pods, reason) == ("claim", ["pod"], VANISHED)
    assert f"MIG device {device.uuid} of claim default/claim was destroyed while in use" in text
    assert "have lost that GPU, and none can start again. Delete the pods of the claim; until then no other" in text
    gauges = ("with_lost_mig_devices", "with_moved_devices", "set_aside")
    assert [watched.gauge(f"dracaena_plugin_claims_{name}") for name in gauges] == [1, 1, 1]
    watched.node.state.unprepare(reference_to(CLAIM))
    watched.watch.look()
    assert watched.gauge("dracaena_plugin_claims_with_lost_mig_devices") == 0


def test_of_a_gpu_that_leaves_vfio_under_a_claim_one_event_tells_why_and_who_must_act(watched: Watched) -> None:
    machine = passthrough_claim("machine", (0, 1), reserved_for={"pod": "pod-uid"})
    watched.node.claims.put(machine)
    watched.node.pool = passthrough_pool(passthrough_gpu(0), passthrough_gpu(1))
    watched.node.state.prepare(reference_to(machine))
    watched.node.pool = passthrough_pool(passthrough_gpu(1))
    for _ in range(3):
        watched.watch.look()
    ((claim, pods, reason, text),) = watched.told
    assert (claim, pods, reason) == ("machine", ["pod"], SET_ASIDE)
    assert text == (
        "no container of claim default/machine can be started: no VFIO driver has the GPU at 0000:20:00.0 any more, or "
        "its IOMMU group is refused: bind it to vfio-pci again, or delete the pods"
    )
    watched.node.pool = passthrough_pool(passthrough_gpu(0, iommu_group=77), passthrough_gpu(1))
    watched.watch.look()
    assert [
        (reason, "/dev/vfio/40, which was vfio-0000-20-00-0" in text) for _, _, reason, text in watched.told[1:]
    ] == [(MOVED, True)], "it is back, in another group"


def test_what_else_is_wrong_with_a_claim_that_has_lost_a_mig_device_is_told_beside_it(watched: Watched) -> None:
    both = make_claim("both", (0, 1))
    watched.node.claims.put(both)
    watched.node.state.prepare(reference_to(both))
    lost = next(each for each in watched.node.node_claims.prepared()[0].devices if each.device == device_name(1))
    watched.renumber()
    watched.node.pool = replace(watched.node.pool, vanished={lost.device: lost.uuid})
    watched.watch.look()
    told = {reason: text for _, _, reason, text in watched.told}
    assert set(told) == {VANISHED, SET_ASIDE, MOVED}
    assert lost.uuid in told[VANISHED]
    for reason in (SET_ASIDE, MOVED):
        assert device_name(0) in told[reason]
        assert lost.uuid not in told[reason]
    assert f"which was {lost.device}" not in told[MOVED]


def test_what_could_not_be_written_is_tried_again_after_all_were_told(watched: Watched) -> None:
    watched.node.state.prepare(reference_to(CLAIM))
    spec = watched.node.folder / "cdi" / "gpu.dracaena.dev-claim_claim-uid.json"
    spec.unlink()
    spec.mkdir()
    watched.renumber()
    with pytest.raises(DracaenaError, match=str(spec)):
        watched.watch.look()
    spec.rmdir()
    watched.watch.look()
    assert [reason for _, _, reason, _ in watched.told] == [MOVED]


def test_the_thread_looks_after_each_change_and_each_minute(watched: Watched) -> None:
    pools: list[PublishedPool] = []

    def read_pool() -> PublishedPool:
        if not pools:
            raise TemporaryError("not known yet")
        return pools[-1]

    watched.node.recovery._read_pool = read_pool

    def told() -> bool:
        watched.node.clock.advance(LOOK_EVERY_S)
        return bool(watched.told)

    watched.watch.start()
    try:
        pools.append(watched.node.pool)
        watched.node.state.prepare(reference_to(CLAIM))
        watched.renumber()
        pools.append(watched.node.pool)
        watched.watch.changed()
        wait_for(told, "the pod is told")
    finally:
        watched.watch.stop()


def test_the_first_reading_ends_the_pause_after_a_look_without_one(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.node.state.prepare(reference_to(CLAIM))
    watched.renumber()
    pools: list[PublishedPool] = []
    gathers = threading.Event()
    wait = watched.node.clock.wait

    def read_pool() -> PublishedPool:
        if not pools:
            raise TemporaryError("not known yet")
        return pools[-1]

    def noting_short_pauses(condition: threading.Condition, timeout_s: float | None) -> bool:
        if timeout_s is not None and timeout_s < 2 * GATHER_S:
            gathers.set()
        return wait(condition, timeout_s)

    def rests() -> bool:
        watched.node.clock.advance(GATHER_S)
        return "device-watch" in resting

    watched.node.recovery._read_pool = read_pool
    monkeypatch.setattr(watched.node.clock, "wait", noting_short_pauses)
    with seen_to_rest() as resting:
        watched.watch.start()
        try:
            wait_for(rests, "it has looked in vain")
            pools.append(watched.node.pool)
            gathers.clear()
            watched.watch.take(RECORDED)
            wait_for(gathers.is_set, "the pause after the failure has ended, though no time has passed")
            watched.node.clock.advance(GATHER_S)
            wait_for(lambda: watched.told, "the pod is told")
        finally:
            watched.watch.stop()
