"""What the GPU driver enforces of prepared shares, after one that has forgotten it was opened again. What follows the
pods of a claim is in changes/kinds/test_memory_limits.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.host.gpu_driver.thread import StoppedError
from dracaena.kubelet_plugin.adapters.kernel.cgroups import Cgroups
from dracaena.kubelet_plugin.changes.claim_changes import ClaimChanges
from dracaena.kubelet_plugin.changes.kinds.memory_limits import MemoryLimits
from dracaena.kubelet_plugin.changes.kinds.time_slices import TimeSlices
from dracaena.kubelet_plugin.device_kinds.enforcement import NodeEnforcement
from dracaena.kubelet_plugin.device_kinds.table import kinds_on
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.kubelet_plugin.upkeep.share_renewal import NOT_ENFORCED, ShareRenewal
from support.fake_memory_limits import CgroupTree, FakeLimiter
from support.fake_nvidia_smi import FakeTimeSlices
from support.killed_steps import KilledSteps, StopError
from support.plugin import (
    DRIVER,
    NODE,
    FakeClaims,
    FakePods,
    PluginNode,
    claim_of,
    device_name,
    gpu_uuid,
    make_pod,
    reference_to,
    share_of,
    sharing_config,
)

GPU, GIB = gpu_uuid(0), 1 << 30
DEFAULT, SHORT, MEDIUM, LONG = TimeSliceInterval


def share_claim(name: str, gib: int) -> ResourceClaim:
    result = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device_name(0)}
    config = [sharing_config(strategy="TimeSlicing", interval="Long")]
    share = share_of(f"{gib}Gi", share_id=f"share-of-{name}")
    return claim_of(name, {"results": [{**result, **share}], "config": config}, reserved_for={"pod": "pod-uid"})


class Ground:
    """Two shares of a GPU in time slices, each with a memory limit. A plugin on it is made anew by each start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "plugin"
        self.claims = [share_claim("one", 10), share_claim("two", 5)]
        self.tree = CgroupTree(folder / "cgroup")
        self.cgroup = self.tree.add("pod-uid")
        self.limiter = FakeLimiter(GPU)
        self.slices = FakeTimeSlices(**{GPU: MEDIUM})
        self.told: list[tuple[str, str]] = []
        self.told_pods: list[list[str]] = []
        self.opened = 1
        self.start()

    def start(self, steps: FileSteps | None = None) -> None:
        cgroups = Cgroups(str(self.tree.root))
        node = NodeEnforcement(memory_limits=None, time_slices=None)
        pods = FakePods(make_pod("pod", {"main": [("one", "")]}, claims={"one": "one", "two": "two"}))
        self.node = PluginNode(
            self.folder,
            FakeClaims(*self.claims),
            pods=pods,
            kind_of=kinds_on(lambda: node),
            kinds=[MemoryLimits(self.limiter.limit, cgroups), TimeSlices(self.slices)],
            steps=steps or FileSteps(),
        )
        if self.folder.exists():
            self.node.checkpoint_files.remove_half_written()
            self.node.ledger_files.remove_half_written()
        self.renewal = ShareRenewal(
            opened=lambda: self.opened,
            claims=self.node.node_claims,
            changes=self.node.changes,
            pods=pods,
            users=self.node.reporter,
            cgroups=cgroups,
            tell=self._tell,
            clock=self.node.clock,
        )

    def _tell(self, _claim: ClaimReference, pods: Sequence[Pod], reason: str, text: str) -> None:
        self.told.append((reason, text))
        self.told_pods.append([pod.metadata.name for pod in pods])

    def reserve(self, place: int, *pods: str) -> None:
        """Reserve a claim for pods that came after it was prepared."""
        consumers = [ConsumerReference(resource="pods", name=pod, uid=f"{pod}-uid") for pod in pods]
        claim = self.claims[place]
        status = msgspec.structs.replace(claim.status, reserved_for=consumers)
        self.node.claims.put(msgspec.structs.replace(claim, status=status))

    def prepare(self, *places: int) -> None:
        for place in places:
            self.node.state.prepare(reference_to(self.claims[place]))

    def unprepare(self, *places: int) -> None:
        for place in places:
            self.node.state.unprepare(reference_to(self.claims[place]))

    def load_driver_anew(self) -> None:
        self.limiter.limits.clear()
        self.slices.intervals[GPU] = DEFAULT
        self.opened += 1

    def before_each(self, work: Callable[[], None]) -> None:
        self.limiter.before_each = self.slices.before_each = work

    def enforced(self) -> tuple[int | None, TimeSliceInterval]:
        limit = self.limiter.of(self.cgroup, GPU)
        return None if limit is None else limit // GIB, self.slices.intervals[GPU]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def test_what_the_driver_has_forgotten_is_made_anew_and_put_back_in_the_end(ground: Ground) -> None:
    ground.prepare(0, 1)
    assert ground.renewal.look()
    ground.load_driver_anew()
    assert ground.enforced() == (None, DEFAULT)
    assert ground.renewal.look()
    assert ground.enforced() == (15, LONG)
    ground.unprepare(0, 1)
    assert ground.enforced() == (None, MEDIUM)


def test_a_driver_that_stays_open_is_asked_for_nothing(ground: Ground) -> None:
    ground.prepare(0)
    assert ground.renewal.look()

    def refuse() -> None:
        raise AssertionError("nothing was forgotten")

    ground.before_each(refuse)
    assert ground.renewal.look()


def test_a_plugin_that_is_started_makes_anew_what_was_forgotten_before(ground: Ground) -> None:
    ground.prepare(0)
    ground.load_driver_anew()
    ground.start()
    assert ground.renewal.look()
    assert ground.enforced() == (10, LONG)


def test_only_what_is_still_prepared_is_made_anew(ground: Ground) -> None:
    ground.prepare(0, 1)
    ground.load_driver_anew()
    ground.unprepare(0)
    ground.load_driver_anew()
    assert ground.renewal.look()
    assert ground.enforced() == (5, LONG)
    ground.unprepare(1)
    ground.load_driver_anew()
    assert ground.renewal.look()
    assert ground.enforced() == (None, DEFAULT)


def test_while_the_gpu_is_away_nothing_is_told_and_once_it_is_back_it_is_made(ground: Ground) -> None:
    """The taint of the GPU says what is wrong with it."""
    ground.prepare(0)
    ground.load_driver_anew()
    ground.limiter.gpus.clear()
    assert not ground.renewal.look()
    assert ground.told == []
    ground.limiter.gpus.add(GPU)
    assert ground.renewal.look()
    assert ground.enforced() == (10, LONG)


def test_what_was_forgotten_of_a_claim_that_is_set_aside_is_made_once_it_is_prepared_again(ground: Ground) -> None:
    """The driver came up without the GPU, and then with it. This look comes before that of the device watch."""
    ground.prepare(0)
    whole = ground.node.pool
    ground.node.pool = dataclasses.replace(whole, gpus={})
    ground.load_driver_anew()
    ground.node.recovery.follow_devices()
    assert not ground.renewal.look()
    ground.node.pool = whole
    ground.load_driver_anew()
    assert not ground.renewal.look()
    ground.node.recovery.follow_devices()
    assert ground.renewal.look()
    assert ground.enforced() == (10, LONG)


def test_what_was_forgotten_while_its_claim_was_being_prepared_is_made_once_it_is(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, looks = ground.node.changes.apply, []

    def lose(*given: Any) -> None:
        apply(*given)
        ground.load_driver_anew()
        with ThreadPoolExecutor() as other:
            looks.append(other.submit(ground.renewal.look).result())

    monkeypatch.setattr(ground.node.changes, "apply", lose)
    ground.prepare(0)
    assert looks == [False]
    assert ground.renewal.look()
    assert ground.enforced() == (10, LONG)
    assert ground.told == [], "its GPU was busy, and nothing is wrong with it"


def test_a_claim_that_is_being_prepared_is_left_to_its_call(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that waited for its GPU would take the place of a call that waits for it."""
    assert ground.renewal.look()
    apply, looks = ground.node.changes.apply, []

    def looked_at(*given: Any) -> None:
        with ThreadPoolExecutor() as other, monkeypatch.context() as patch:
            patch.delattr(ClaimChanges, "hold")
            looks.append(other.submit(ground.renewal.look).result())
        apply(*given)

    monkeypatch.setattr(ground.node.changes, "apply", looked_at)
    ground.prepare(0)
    assert looks == [True]


def test_a_pod_that_comes_later_costs_no_look_at_the_time_slices(ground: Ground) -> None:
    ground.prepare(0)
    assert ground.renewal.look()
    ground.reserve(0, "pod", "late")
    ground.tree.add("late-uid")
    ground.node.pods.add(make_pod("late", {"main": [("one", "")]}, claims={"one": "one"}))
    ground.node.reporter.reconcile()

    def refuse() -> None:
        raise AssertionError("nvidia-smi takes some tenths of a second")

    ground.slices.before_each = refuse
    assert ground.renewal.look()
    assert len(ground.limiter.limits) == 2


def test_what_the_driver_cannot_do_any_more_is_told_once(ground: Ground) -> None:
    ground.prepare(0)
    ground.node.reporter.reconcile()
    ground.load_driver_anew()
    ground.limiter.problem = "load it without RmMemacctMode=0"
    assert not ground.renewal.look()
    assert not ground.renewal.look()
    ((reason, text),) = ground.told
    assert reason == NOT_ENFORCED
    assert "may have forgotten the limits of claim default/one's share" in text
    assert "load it without RmMemacctMode=0" in text
    ground.limiter.problem = None
    assert ground.renewal.look()
    assert ground.enforced() == (10, LONG)


def test_it_is_told_once_it_is_known_who_uses_the_claim(ground: Ground) -> None:
    ground.prepare(0)
    ground.load_driver_anew()
    ground.limiter.problem = "load it without RmMemacctMode=0"
    assert not ground.renewal.look()
    assert ground.told == []
    ground.node.reporter.reconcile()
    assert not ground.renewal.look()
    assert len(ground.told) == 1


def test_pods_that_the_watch_has_not_shown_yet_are_told_too_and_those_that_come_later(ground: Ground) -> None:
    ground.prepare(0)
    ground.node.reporter.reconcile()
    ground.load_driver_anew()
    ground.limiter.problem = "load it without RmMemacctMode=0"
    ground.reserve(0, "pod", "late")
    ground.node.pods.add(make_pod("late", claims={"one": "one"}), shown=False)
    ground.node.pods.failures = 1
    assert not ground.renewal.look()
    assert ground.told == [], "the API does not say who"
    assert not ground.renewal.look()
    assert ground.told_pods == [["pod", "late"]]
    ground.reserve(0, "pod", "late", "later")
    ground.node.pods.add(make_pod("later", {"main": [("one", "")]}, claims={"one": "one"}))
    ground.node.reporter.reconcile()
    reads = ground.node.claims.reads
    assert not ground.renewal.look()
    assert not ground.renewal.look()
    assert ground.told_pods == [["pod", "late"], ["later"]]
    assert ground.node.claims.reads == reads, "the watch has shown it"


def test_one_claim_that_cannot_be_held_does_not_keep_another_from_being_held(ground: Ground) -> None:
    ground.prepare(0, 1)
    ground.load_driver_anew()
    calls = []

    def refuse_first() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise StoppedError("the first one")

    ground.before_each(refuse_first)
    assert not ground.renewal.look()
    assert ground.enforced() == (15, LONG)
    assert ground.renewal.look()
    assert ground.told == []


def test_killed_at_any_step_the_next_plugin_makes_it_and_nothing_is_left_in_the_end(tmp_path: Path) -> None:
    step, crashed = 1, True
    while crashed:
        ground = Ground(tmp_path / str(step))
        ground.prepare(0, 1)
        ground.load_driver_anew()
        steps = KilledSteps(step)
        ground.before_each(steps._count)
        ground.start(steps)
        try:
            ground.renewal.look()
            crashed = False
        except StopError:
            crashed = True
        ground.before_each(lambda: None)
        ground.start()
        assert ground.renewal.look()
        assert ground.enforced() == (15, LONG), step
        ground.unprepare(1, 0)
        assert ground.enforced() == (None, MEDIUM), step
        assert ground.node.node_claims.by_boot() == ((), (), ()), step
        step += 1
    assert step > 6


def test_a_renewal_that_does_nothing_is_found(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault."""
    monkeypatch.setattr(ClaimChanges, "follow", lambda *_: True)
    with pytest.raises(AssertionError):
        test_what_the_driver_has_forgotten_is_made_anew_and_put_back_in_the_end(ground)
