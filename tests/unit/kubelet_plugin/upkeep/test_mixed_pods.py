from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.kubelet_plugin.prepare.guests import GuestRuntimes
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.kubelet_plugin.upkeep.mixed_pods import OF_OTHER_KIND, MixedPods
from support.passthrough import passthrough_claim, passthrough_gpu, passthrough_pool
from support.plugin import FakeClaims, FakePods, PluginNode, make_claim, make_pod, make_pool, reference_to

HOST, GUEST = "", "kata-qemu"


class Ground:
    """A claim that was prepared for one pod, to which others come."""

    def __init__(self, folder: Path, claim: ResourceClaim, runtime_class: str) -> None:
        self.claim, self.told = claim, list[tuple[list[str], str, str]]()
        pool = make_pool() if claim.status.allocation and _is_gpu(claim) else passthrough_pool(passthrough_gpu(0))
        self.node = PluginNode(folder, FakeClaims(claim), FakePods(self.pod("pod", runtime_class)), pool=pool)
        self.node.state.prepare(reference_to(claim))
        self.mixed = MixedPods(GuestRuntimes.parse("kata,kata-*"), self.node.pods, self._tell)

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
        self.mixed.follow(self.node.reporter._prepared())
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
