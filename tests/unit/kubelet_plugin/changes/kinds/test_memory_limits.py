"""Memory limits of shares on the cgroups of pods: made with a claim, followed while it lives, gone with it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.host.gpu_driver.thread import StoppedError
from dracaena.kubelet_plugin import worker
from dracaena.kubelet_plugin.adapters.kernel.cgroups import Cgroups
from dracaena.kubelet_plugin.changes.change import Note, OwnersAlone, Thing, ThingPlan, Unreadable, Wants
from dracaena.kubelet_plugin.changes.kinds.memory_limits import Limit, MemoryLimits
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from dracaena.kubelet_plugin.device_kinds.enforcement import NodeEnforcement
from dracaena.kubelet_plugin.device_kinds.memory_limit_effect import pod_of
from dracaena.kubelet_plugin.device_kinds.table import kinds_on
from dracaena.kubelet_plugin.prepare.effects import MEMORY_LIMIT
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.kubelet_plugin.upkeep import share_renewal
from dracaena.kubelet_plugin.upkeep.share_renewal import AGAIN_S, LOOK_EVERY_S, NOT_ENFORCED, ShareRenewal
from support.fake_memory_limits import CgroupTree, FakeLimiter
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
    make_pool,
    reference_to,
    share_of,
    sharing_config,
)

GPU, GIB = gpu_uuid(0), 1 << 30


def share_claim(name: str, *pods: str, gib: int = 10, required: bool = True) -> ResourceClaim:
    allocated = allocation(name, gib, required=required)
    return claim_of(name, allocated, reserved_for={pod: f"{pod}-uid" for pod in pods or ("pod",)})


def allocation(name: str, gib: int = 10, *, required: bool = True) -> dict[str, Any]:
    result = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device_name(0)}
    share = share_of(f"{gib}Gi", share_id=f"share-of-{name}")
    config = [] if required else [sharing_config(enforcement="BestEffort")]
    return {"results": [{**result, **share}], "config": config}


def whole_claim(name: str) -> ResourceClaim:
    result = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device_name(0)}
    return claim_of(name, {"results": [result]}, reserved_for={"pod": "pod-uid"})


def using(pod: str, *claims: str, phase: str = "Running") -> Pod:
    return make_pod(pod, {"main": [(each, "") for each in claims]}, claims={each: each for each in claims}, phase=phase)


class Ground:
    """A node's cgroups and driver; a plugin on it is made anew by each start."""

    def __init__(self, folder: Path, *claims: ResourceClaim, pods: Iterable[Pod] = (), cgroups: str = "pod") -> None:
        self.folder, self.claims = folder / "plugin", list(claims)
        self.tree = CgroupTree(folder / "cgroup")
        self.limiter = FakeLimiter(GPU)
        self.pods = FakePods(*pods)
        self.told: list[tuple[str, str]] = []
        self.told_pods: list[list[str]] = []
        for pod in cgroups.split():
            self.tree.add(f"{pod}-uid")
        self.start()

    def start(self, steps: FileSteps | None = None, **parts: Any) -> PluginNode:
        cgroups = Cgroups(str(self.tree.root))
        self.node = PluginNode(
            self.folder,
            FakeClaims(*self.claims),
            pods=self.pods,
            kind_of=kinds_on(lambda: NodeEnforcement(memory_limits=cgroups.problem())),
            kinds=[MemoryLimits(lambda *given: self.limiter.limit(*given), cgroups)],  # noqa: PLW0108 - as it is when called
            steps=steps or FileSteps(),
            **parts,
        )
        if self.folder.exists():
            self.node.checkpoint_files.remove_half_written()
            self.node.ledger_files.remove_half_written()
        self.renewal = ShareRenewal(
            opened=lambda: 0,  # the driver is never loaded anew here
            claims=self.node.node_claims,
            changes=self.node.changes,
            pods=self.pods,
            users=self.node.reporter,
            cgroups=cgroups,
            tell=self._tell,
            clock=self.node.clock,
        )
        return self.node

    def _tell(self, _claim: ClaimReference, pods: Sequence[Pod], reason: str, text: str) -> None:
        self.told.append((reason, text))
        self.told_pods.append([pod.metadata.name for pod in pods])

    def reserve(self, *pods: str, place: int = 0) -> None:
        """Reserve a claim for these pods and no others, as kube-scheduler does for pods that come later."""
        consumers = [ConsumerReference(resource="pods", name=pod, uid=f"{pod}-uid") for pod in pods]
        claim = self.claims[place]
        status = msgspec.structs.replace(claim.status, reserved_for=consumers)
        self.claims[place] = msgspec.structs.replace(claim, status=status)
        self.node.claims.put(self.claims[place])

    def prepare(self, place: int = 0) -> None:
        self.node.state.prepare(reference_to(self.claims[place]))

    def unprepare(self, place: int = 0) -> None:
        self.node.state.unprepare(reference_to(self.claims[place]))

    def follow(self) -> None:
        """What PodDevicesReporter does after each change."""
        with self.node.node_claims.hold():
            self.renewal.follow(self.node.node_claims.prepared())

    def look(self) -> bool:
        """Look, once PodDevicesReporter has found out whose claims these are."""
        self.node.reporter.reconcile()
        return self.renewal.look()

    def pause_s(self) -> float:
        """The pause after one more look."""
        self.look()
        return self.renewal.pause_s()

    def limits(self) -> dict[str, int]:
        """GiB by the pod's folder, whose last part is its UID."""
        return {
            cgroup.rpartition("-pod")[2].removesuffix("_uid.slice"): limit // GIB
            for (_, cgroup), limit in self.limiter.limits.items()
        }


def test_each_pod_of_a_claim_is_held_to_the_share_until_the_claim_goes(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a", "b"), cgroups="a b")
    ground.prepare()
    assert ground.limits() == {"a": 10, "b": 10}
    ground.unprepare()
    assert ground.limits() == {}


def test_a_pod_with_two_shares_of_a_gpu_has_the_sum(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one"), share_claim("two", gib=5))
    ground.prepare(0)
    ground.prepare(1)
    assert ground.limits() == {"pod": 15}
    ground.unprepare(0)
    assert ground.limits() == {"pod": 5}
    ground.unprepare(1)
    assert ground.limits() == {}


def test_cgroups_of_containers_get_no_limit(tmp_path: Path) -> None:
    """With `misc` they would not count on their pod's any more, and the pod could take more than its shares."""
    ground = Ground(tmp_path, share_claim("one"), share_claim("two", gib=5))
    ground.pods.add(using("pod", "one"))
    ground.prepare(0)
    ground.prepare(1)
    for name in ("cri-containerd-0a1b.scope", "crio-0a1b.scope", "0a1b"):
        (ground.tree.add("pod-uid") / name).mkdir()
    assert ground.look()
    assert ground.limits() == {"pod": 15}
    assert len(ground.limiter.limits) == 1


def test_a_pod_that_kubelet_has_not_begun_with_waits_for_its_cgroup(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "early", "late"), cgroups="early")
    ground.pods.add(using("early", "one"))
    ground.pods.add(using("late", "one"))
    ground.prepare()
    assert ground.limits() == {"early": 10}
    assert not ground.look()
    ground.tree.add("late-uid")
    assert ground.look()
    assert ground.limits() == {"early": 10, "late": 10}


def test_without_any_cgroup_of_its_pods_a_claim_waits(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one"), cgroups="")
    with pytest.raises(TemporaryError, match="kubelet has no cgroup for pod UID pod-uid yet"):
        ground.prepare()
    ground.tree.add("pod-uid")
    ground.prepare()
    assert ground.limits() == {"pod": 10}


def test_a_pod_that_comes_later_is_held_and_one_that_ended_keeps_nothing(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), pods=[using("a", "one")], cgroups="a")
    ground.prepare()
    assert ground.look()
    ground.reserve("a", "b")
    ground.pods.add(using("b", "one"))
    ground.tree.add("b-uid")
    ground.pods.add(using("stranger", "other"))
    ground.tree.add("stranger-uid")
    assert ground.look()
    assert ground.limits() == {"a": 10, "b": 10}
    ground.pods.add(using("a", "one", phase="Succeeded"))
    assert ground.look()
    assert ground.limits() == {"b": 10}
    ground.start()
    ground.unprepare()
    assert ground.limits() == {}


def test_a_pod_that_kubelet_begins_with_while_its_claim_is_set_aside_is_held_once_the_claim_is_not(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, share_claim("one", "early", "late"), cgroups="early")
    ground.pods.add(using("early", "one"))
    ground.pods.add(using("late", "one"))
    ground.prepare()
    whole = ground.node.pool
    ground.node.pool = dataclasses.replace(whole, gpus={})
    ground.node.recovery.follow_devices()
    ground.tree.add("late-uid")
    assert not ground.look()
    ground.node.pool = whole
    ground.node.recovery.follow_devices()
    assert ground.look()
    assert ground.limits() == {"early": 10, "late": 10}


def test_a_pod_for_which_the_claim_is_not_reserved_is_not_limited_whatever_names_it_writes(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), pods=[using("a", "one")], cgroups="a thief")
    ground.prepare()
    ground.pods.add(using("thief", "one"))
    assert ground.look()
    assert ground.limits() == {"a": 10}


def test_a_pod_of_a_later_claim_of_the_same_name_is_not_limited(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), pods=[using("a", "one")], cgroups="a b")
    ground.prepare()
    ground.reserve("b")
    ground.claims[0] = msgspec.structs.replace(
        ground.claims[0], metadata=msgspec.structs.replace(ground.claims[0].metadata, uid="another")
    )
    ground.node.claims.put(ground.claims[0])
    ground.pods.add(using("b", "one"))
    assert ground.look()
    assert ground.limits() == {"a": 10}


def test_the_last_limit_stays_until_the_claim_goes(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), pods=[using("a", "one")], cgroups="a")
    ground.prepare()
    ground.pods.add(using("a", "one", phase="Failed"))
    assert ground.look()
    assert ground.limits() == {"a": 10}
    ground.reserve("a", "b")
    ground.pods.add(using("b", "one"))
    ground.tree.add("b-uid")
    assert ground.look()
    assert ground.limits() == {"b": 10}


def test_a_pod_that_the_watch_does_not_show_yet_keeps_its_limit(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a", "b"), pods=[using("b", "one")], cgroups="a b")
    ground.prepare()
    assert ground.look()
    assert ground.limits() == {"a": 10, "b": 10}
    ground.tree.remove("a-uid")
    assert ground.look()
    assert [pod_of(effect) for effect in ground.node.node_claims.prepared()[0].wants] == ["b-uid"]


def test_a_later_pod_that_cannot_be_held_is_told_once(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), pods=[using("a", "one"), using("b", "one")], cgroups="a b")
    ground.prepare()
    ground.reserve("a", "b")
    ground.limiter.problem = "the driver was loaded without them"
    assert not ground.look()
    assert not ground.look()
    assert ground.told_pods == [["a", "b"]]
    ((reason, text),) = ground.told
    assert reason == NOT_ENFORCED
    assert "may use more of its GPU's memory than its share" in text
    assert "the driver was loaded without them" in text
    ground.reserve("a", "b", "c")
    ground.pods.add(using("c", "one"))
    for _ in range(2):
        assert not ground.look()
    assert ground.told_pods == [["a", "b"], ["c"]]


def test_nobody_is_told_of_a_limit_that_a_pod_keeps_which_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, share_claim("one", "a", "b"), pods=[using("a", "one"), using("b", "one")], cgroups="a b")
    ground.prepare()
    assert ground.look()
    limit = FakeLimiter.limit

    def refused(self: FakeLimiter, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        if limit_bytes is None:
            raise TemporaryError("the driver does not answer")
        limit(self, gpu, cgroup, limit_bytes)

    monkeypatch.setattr(FakeLimiter, "limit", refused)
    ground.pods.add(using("a", "one", phase="Succeeded"))
    assert [ground.pause_s() for _ in range(3)] == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S]
    assert (ground.told, ground.limits()) == ([], {"a": 10, "b": 10})
    monkeypatch.undo()
    assert ground.look()
    assert (ground.told, ground.limits()) == ([], {"b": 10})


def test_nobody_is_told_of_a_limit_that_waits_for_a_call_which_has_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An MPS server may take ten seconds to start."""
    monkeypatch.setattr(share_renewal, "GPU_WAIT_S", 0.0)
    ground = Ground(tmp_path, share_claim("one", "a"), pods=[using("a", "one"), using("b", "one")], cgroups="a b")
    ground.prepare()
    ground.reserve("a", "b")
    with ThreadPoolExecutor() as other, ground.node.gpu_locks[device_name(0)].hold():
        assert not other.submit(ground.look).result()
    assert (ground.told, ground.renewal.pause_s()) == ([], AGAIN_S)
    assert ground.look()
    assert ground.limits() == {"a": 10, "b": 10}


def test_a_plugin_that_is_being_stopped_tells_nobody_of_limits_that_it_leaves_to_the_next_one(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), pods=[using("a", "one"), using("b", "one")], cgroups="a b")
    ground.prepare()
    ground.reserve("a", "b")

    def stop() -> None:
        raise StoppedError("this program is being stopped")

    ground.limiter.before_each = stop
    assert not ground.look()
    assert ground.told == []


def test_a_limit_that_cannot_be_set_is_tried_less_and_less_often_while_the_reason_stays(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), pods=[using("a", "one"), using("b", "one")], cgroups="a b")
    ground.prepare()
    ground.reserve("a", "b")
    ground.limiter.problem = "the driver was loaded without them"
    assert [ground.pause_s() for _ in range(9)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]
    ground.limiter.problem = "something else"
    assert [ground.pause_s() for _ in range(2)] == [0.2, 0.4]
    ground.limiter.problem = None
    assert ground.pause_s() == LOOK_EVERY_S
    assert ground.limits() == {"a": 10, "b": 10}


def test_a_pod_without_a_cgroup_is_looked_for_again_and_again(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), pods=[using("a", "one"), using("b", "one")], cgroups="a")
    ground.prepare()
    ground.reserve("a", "b")
    assert [ground.pause_s() for _ in range(5)] == [AGAIN_S] * 5


def test_where_no_claim_has_a_limit_nothing_wakes_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(worker.Worker, "notice", lambda self: woken.append(1))
    ground = Ground(tmp_path, whole_claim("whole"), share_claim("one", "a"), pods=[using("a", "one")], cgroups="a")
    ground.prepare(0)
    woken.clear()
    ground.follow()
    assert (woken, ground.pause_s()) == ([], math.inf)
    ground.unprepare(0)
    ground.prepare(1)
    woken.clear()
    ground.follow()
    assert (woken, ground.pause_s()) == ([1], LOOK_EVERY_S)
    ground.unprepare(1)
    assert ground.pause_s() == math.inf


def test_what_the_driver_cannot_is_refused_by_name_unless_the_config_allows_it(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one"), share_claim("two", required=False))
    ground.limiter.problem = "write `+dmem`"
    with pytest.raises(PermanentError, match=rf"enforces the memory of {device_name(0)}: write `\+dmem`"):
        ground.prepare(0)
    ground.prepare(1)
    ground.unprepare(1)
    assert ground.node.node_claims.by_boot() == ((), (), ())


def test_an_old_driver_cgroup_v1_and_kubelet_without_pod_cgroups_are_refused_by_name(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one"))
    ground.start(pool=dataclasses.replace(make_pool(), gpu_driver_version="580.65.06"))
    with pytest.raises(PrepareError, match=r"GPU driver 580[.]65[.]06 has no memory limits for pods"):
        ground.prepare()
    ground.start()
    (ground.tree.root / "kubepods.slice").rename(ground.tree.root / "other")
    with pytest.raises(PrepareError, match="cgroupsPerQOS must be true"):
        ground.prepare()
    (ground.tree.root / "cgroup.controllers").unlink()
    with pytest.raises(PrepareError, match="is not a cgroup v2 tree"):
        ground.prepare()


def test_a_gpu_that_is_lost_and_a_cgroup_that_is_gone_keep_nobody_from_ending(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one", "a", "b"), cgroups="a b")
    ground.prepare()
    ground.tree.remove("a-uid")
    ground.limiter.gpus.clear()
    ground.unprepare()
    assert ground.node.node_claims.by_boot() == ((), (), ())


def test_what_an_earlier_boot_limited_is_forgotten(tmp_path: Path) -> None:
    ground = Ground(tmp_path, share_claim("one"))
    ground.prepare()
    ground.limiter.limits.clear()
    ground.start(boot_id="boot-2")
    ground.limiter.gpus.clear()
    ground.unprepare()
    ground.limiter.gpus.add(GPU)
    ground.prepare()
    assert ground.limits() == {"pod": 10}


@pytest.mark.parametrize("how", ["lost", "broken"])
def test_the_limit_of_a_claim_that_is_gone_with_its_checkpoint_is_removed_by_the_next_sweep(
    tmp_path: Path, how: str
) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), share_claim("two", "a", gib=5), cgroups="a")
    ground.prepare(0)
    ground.prepare(1)
    checkpoint = ground.folder / "claims" / "one-uid.json"
    if how == "lost":
        checkpoint.unlink()
        (ground.folder / f"cdi/{DRIVER}-claim_one-uid.json").unlink()
    else:
        checkpoint.write_bytes(b"torn")
    ground.node.node_claims.look_at_each()
    if how == "broken":
        assert ground.node.engine.sweep(MEMORY_LIMIT) == 0
        assert ground.limits() == {"a": 15}, "its containers may run"
        ground.unprepare(0)
    assert ground.node.engine.sweep(MEMORY_LIMIT) == 0, "the other claim has a part in it"
    ground.unprepare(1)
    assert ground.limits() == {}
    assert ground.node.ledger.things(MEMORY_LIMIT) == ()


def test_a_claim_that_is_reserved_only_for_a_pod_whose_uid_no_server_gives_is_refused(tmp_path: Path) -> None:
    claim = claim_of("one", allocation("one"), reserved_for={"pod": "../../pod-uid"})
    ground = Ground(tmp_path, claim)
    with pytest.raises(PrepareError, match=r"reserved for no pod \(status.reservedFor\)"):
        ground.prepare()
    assert [path.name for path in ground.folder.rglob("*.json")] == []


@pytest.mark.parametrize("data", [None, b"torn"], ids=["lost", "broken"])
def test_a_claim_that_was_prepared_ends_without_its_limit_although_its_note_is_gone(
    tmp_path: Path, data: bytes | None
) -> None:
    ground = Ground(tmp_path, share_claim("one", "a"), cgroups="a")
    ground.prepare()
    for path in (ground.folder / "ledger").glob("*.json"):
        path.unlink() if data is None else path.write_bytes(data)
    ground.unprepare()
    assert ground.limits() == {}
    assert ground.node.ledger.things(MEMORY_LIMIT) == ()


TABLE = MemoryLimits(FakeLimiter().limit, Cgroups("/nowhere"))
TORN = Unreadable("its note is torn", b"torn")
OURS = Note("boot-1", {"one": ({"memory_bytes": 1, "required": True},)}, OwnersAlone())


def test_a_limit_is_the_sum_of_all_shares_and_goes_with_the_last_unless_its_note_cannot_be_read() -> None:
    two: Wants = {"one": ({"memory_bytes": 3}, {"memory_bytes": 4}), "two": ({"memory_bytes": 5},)}
    assert TABLE.plan(two, "pod", None) == ThingPlan(OwnersAlone(), Limit("pod", 12))
    assert TABLE.plan(two, "pod", TORN) == ThingPlan(OwnersAlone(), Limit("pod", 12))
    assert TABLE.plan(two, None, OURS) == ThingPlan(OwnersAlone(), Limit(None, 12))
    assert TABLE.plan({}, "pod", OURS) == ThingPlan(act=Limit("pod", 0))
    assert TABLE.plan({}, None, OURS) == TABLE.plan({}, None, TORN) == ThingPlan()
    left = TABLE.plan({}, "pod", TORN)
    assert left.act is None
    assert "its note is torn" in left.stays


def test_admins_are_not_sent_to_time_slices_for_a_limit() -> None:
    said = TABLE.trouble(Thing(MEMORY_LIMIT, f"{device_name(0)}+pod-uid"), TemporaryError("the driver does not answer"))
    assert said is not None
    assert said.advice == (
        f"pod UID pod-uid may be limited in the memory of {device_name(0)} for no claim until it ends: the driver does "
        "not answer; it is tried again every few minutes"
    )


@pytest.mark.parametrize("required", [True, False])
def test_a_claim_that_is_reserved_for_no_pod_is_held_to_nothing_or_refused(tmp_path: Path, required: bool) -> None:
    claim = share_claim("one", required=required)
    claim = msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, reserved_for=[]))
    ground = Ground(tmp_path, claim)
    if required:
        with pytest.raises(PrepareError, match=r"reserved for no pod \(status.reservedFor\)"):
            ground.prepare()
    else:
        ground.prepare()
    assert ground.limits() == {}
