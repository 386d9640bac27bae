from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dracaena.api.names import PodUid
from dracaena.api.objects import Pod, VolumeMount
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, Effect
from dracaena.kubelet_plugin.prepare.guests import GuestRuntimes
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from dracaena.kubelet_plugin.upkeep.late_pods import OF_OTHER_KIND, UNFIT_FOR_SHARE, LatePods
from support.passthrough import passthrough_claim, passthrough_gpu, passthrough_pool
from support.plugin import (
    FakeClaims,
    FakePods,
    PluginNode,
    device_name,
    make_claim,
    make_pod,
    make_pool,
    prepared_claim,
    reference_to,
)

HOST, GUEST = "", "kata-qemu"


class Ground:
    """A claim that was prepared for one pod, to which others come."""

    def __init__(self, folder: Path, claim: ResourceClaim, runtime_class: str) -> None:
        self.claim, self.told = claim, list[tuple[list[str], str, str]]()
        pool = make_pool() if claim.status.allocation and _is_gpu(claim) else passthrough_pool(passthrough_gpu(0))
        self.node = PluginNode(folder, FakeClaims(claim), FakePods(self.pod("pod", runtime_class)), pool=pool)
        self.node.state.prepare(reference_to(claim))
        self.late = LatePods(GuestRuntimes.parse("kata,kata-*"), self.node.pods, self._tell)

    def pod(self, name: str, runtime_class: str) -> Pod:
        return make_pod(name, {"main": [("claim", "")]}, claims={"claim": "claim"}, runtime_class=runtime_class)

    def come(self, *names: str, runtime_class: str) -> None:
        for name in names:
            self.node.pods.add(self.pod(name, runtime_class))
        consumers = [ConsumerReference(resource="pods", name=name, uid=f"{name}-uid") for name in ("pod", *names)]
        status = msgspec.structs.replace(self.claim.status, reserved_for=consumers)
        self.node.claims.put(msgspec.structs.replace(self.claim, status=status))

    def news(self) -> list[tuple[list[str], str, str]]:
        self.told.clear()
        self.node.reporter.reconcile()
        self.late.follow(self.node.reporter._prepared())
        return list(self.told)

    def _tell(self, _claim: ClaimReference, pods: Sequence[Pod], reason: str, text: str) -> None:
        self.told.append(([pod.metadata.name for pod in pods], reason, text))


def _is_gpu(claim: ResourceClaim) -> bool:
    assert claim.status.allocation is not None
    return claim.status.allocation.devices.results[0].device.startswith("gpu-")


FOR_GUESTS, OF_HOST = passthrough_claim(reserved_for={"pod": "pod-uid"}), make_claim(reserved_for={"pod": "pod-uid"})


@pytest.mark.parametrize(
    ("claim", "first", "later", "words"),
    [
        (FOR_GUESTS, GUEST, HOST, "pod default/late does not run in a virtual machine, and claim default/claim was"),
        (FOR_GUESTS, HOST, GUEST, "pod default/late runs in a virtual machine (RuntimeClass kata-qemu), and claim"),
        (
            OF_HOST,
            HOST,
            GUEST,
            "was prepared for pods of the host: its containers get what means something on",
        ),
    ],
)
def test_a_pod_of_the_other_kind_that_comes_later_is_told_once(
    tmp_path: Path, claim: ResourceClaim, first: str, later: str, words: str
) -> None:
    ground = Ground(tmp_path, claim, first)
    assert ground.news() == []
    ground.come("late", runtime_class=later)
    ((pods, reason, text),) = ground.news()
    assert (pods, reason) == (["late"], OF_OTHER_KIND)
    assert words in text
    assert "Give it a claim of its own" in text
    assert ground.news() == []
    ground.come("late", "later", runtime_class=later)
    assert [pods for pods, _, _ in ground.news()] == [["later"]]


@pytest.mark.parametrize(("claim", "kind"), [(FOR_GUESTS, GUEST), (FOR_GUESTS, HOST), (OF_HOST, HOST)])
def test_pods_of_the_same_kind_hear_nothing(tmp_path: Path, claim: ResourceClaim, kind: str) -> None:
    ground = Ground(tmp_path, claim, kind)
    ground.come("late", runtime_class=kind)
    assert ground.news() == []


def by_mps(name: str, gpu: int, *, mps: bool = True) -> PreparedClaim:
    """A claim with one GPU, as a share by MPS or whole, that two pods use."""
    share = f"of-{name}" if mps else None
    claim = prepared_claim(name, (gpu,), share_id=share)
    effects = (Effect(MPS_SHARE, device_name(gpu), device_name(gpu), share),) if mps else ()
    return replace(claim, wants=effects, consumers=(PodUid("pod-uid"), PodUid("late-uid")))


SHARE, OTHER_SHARE, WHOLE = by_mps("share", 0), by_mps("other", 1), by_mps("whole", 1, mps=False)


def told_of(prepared: Sequence[PreparedClaim], late: Pod) -> list[tuple[str, str, str]]:
    """Which claims a pod was told of that came after another, with what reason and text."""
    apart = {"main": [("a", "")], "side": [("b", "")]}
    names = {"a": prepared[0].claim.name, "b": prepared[-1].claim.name}
    pods = FakePods(make_pod("pod", apart, claims=names))
    told: list[tuple[str, str, str]] = []

    def tell(claim: ClaimReference, users: Sequence[Pod], reason: str, text: str) -> None:
        assert [pod.metadata.name for pod in users] == ["late"]
        told.append((claim.name, reason, text))

    watched = LatePods(GuestRuntimes.parse(""), pods, tell, mps_folders=lambda: ("/dev/shm",))
    watched.follow(prepared)
    assert told == []
    pods.add(late)
    for _ in range(2):
        watched.follow(prepared)
    return told


@pytest.mark.parametrize(("other", "claims"), [(WHOLE, ["share"]), (OTHER_SHARE, ["share", "other"])])
def test_a_pod_whose_container_has_a_share_beside_another_device_is_told_once(
    other: PreparedClaim, claims: list[str]
) -> None:
    late = make_pod("late", {"main": [("a", ""), ("b", "")]}, claims={"a": "share", "b": other.claim.name})
    told = told_of([SHARE, other], late)
    assert [(name, reason) for name, reason, _ in told] == [(name, UNFIT_FOR_SHARE) for name in claims]
    assert all("container main of pod default/late would have" in text for _, _, text in told)


def test_a_pod_that_mounts_over_the_folder_of_a_share_is_told() -> None:
    late = make_pod("late", {"main": [("a", "")]}, claims={"a": "share"})
    (main,) = late.spec.containers
    mounting = msgspec.structs.replace(main, volume_mounts=[VolumeMount("/dev/shm")])
    late = msgspec.structs.replace(late, spec=msgspec.structs.replace(late.spec, containers=[mounting]))
    ((_, _, text),) = told_of([SHARE, WHOLE], late)
    assert "mounts a volume of its own at /dev/shm" in text


def test_a_pod_that_gives_each_device_to_a_container_of_its_own_hears_nothing() -> None:
    apart = make_pod("late", {"main": [("a", "")], "side": [("b", "")]}, claims={"a": "share", "b": "whole"})
    assert told_of([SHARE, WHOLE], apart) == []
    together = make_pod("late", {"main": [("a", ""), ("b", "")]}, claims={"a": "whole", "b": "other"})
    assert told_of([WHOLE, by_mps("other", 2, mps=False)], together) == []


class CountedClaims(tuple[PreparedClaim, ...]):
    """Counts how often somebody goes through all claims."""

    rounds = 0

    def __iter__(self) -> Iterator[PreparedClaim]:
        self.rounds += 1
        return super().__iter__()


def rounds_of(claims: int) -> int:
    """How often all claims of a node are gone through, each of which has a share by MPS and a pod of its own."""
    names = [f"c{n}" for n in range(claims)]
    pods = FakePods(*(make_pod(name, {"main": [("a", "")]}, claims={"a": name}) for name in names))
    prepared = CountedClaims(replace(by_mps(name, 0), consumers=(PodUid(f"{name}-uid"),)) for name in names)
    LatePods(GuestRuntimes.parse(""), pods, lambda *_: None).follow(prepared)
    return prepared.rounds


def test_following_many_shares_goes_through_all_claims_no_more_often_than_following_few() -> None:
    assert rounds_of(2) == rounds_of(40) > 0
