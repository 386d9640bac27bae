from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from dracaena.api.names import DeviceName, PoolName
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers
from support.plugin import (
    DRIVER,
    NODE,
    FakeClaims,
    FakePods,
    PluginNode,
    claim_of,
    device_name,
    make_claim,
    make_pod,
    reference_to,
)

GPU, OTHER = device_name(0), device_name(1)
PART = DeviceName(f"mig-{GPU.removeprefix('gpu-')}-1g-10gb-3")


class Node:
    """Claims and pods at the API, and what is prepared here."""

    def __init__(self, folder: Path, claims: Mapping[str, ResourceClaim], pods: FakePods) -> None:
        self.claims = claims
        self.asked: list[str] = []
        self.plugin = PluginNode(folder, FakeClaims(*claims.values()))
        self.users = GpuUsers(
            driver=DRIVER,
            pool=PoolName(NODE),
            claims=self.plugin.node_claims,
            pods=pods,
            find_claim=self._find,
        )

    def _find(self, namespace: str, name: str) -> ResourceClaim | None:
        assert namespace == "default"
        self.asked.append(name)
        return self.claims.get(name)


def pod_of(claim: str, phase: str = "Running") -> FakePods:
    return FakePods(make_pod("pod", {"main": [("gpus", "")]}, claims={"gpus": claim}, phase=phase))


def part_claim(device: str, driver: str = DRIVER, pool: str = NODE) -> ResourceClaim:
    return claim_of("claim", {"results": [{"request": "gpus", "driver": driver, "pool": pool, "device": device}]})


def claim_anew(device: str) -> ResourceClaim:
    made = part_claim(device)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, uid="anew-uid"))


def test_a_prepared_claim_has_its_gpu_and_no_other(tmp_path: Path) -> None:
    claim = make_claim("claim", (0,))
    node = Node(tmp_path, {"claim": claim}, FakePods())
    assert node.users.holding(GPU) is None
    node.plugin.state.prepare(reference_to(claim))
    assert node.users.holding(GPU) == f"claim default/claim (UID claim-uid) has {GPU} or a part of it"
    assert node.users.holding(OTHER) is None
    node.plugin.state.unprepare(reference_to(claim))
    assert node.users.holding(GPU) is None


def test_without_a_gpu_the_whole_node_is_meant(tmp_path: Path) -> None:
    claims = {"prepared": make_claim("prepared", (0,)), "claim": part_claim(OTHER)}
    node = Node(tmp_path, claims, pod_of("claim"))
    assert node.users.holding(None) is None
    assert node.users.allocated(None) == "claim default/claim (UID claim-uid) has a GPU of this node"
    node.plugin.state.prepare(reference_to(claims["prepared"]))
    assert node.users.holding(None) == "claim default/prepared (UID prepared-uid) has a GPU of this node"


def test_all_claims_that_are_waited_for_are_named_up_to_seven(tmp_path: Path) -> None:
    claims = [make_claim(f"claim-{number}", (0,), adminAccess=True) for number in range(9)]
    node = Node(tmp_path, {claim.metadata.name: claim for claim in claims}, FakePods())
    for claim in reversed(claims[:2]):
        node.plugin.state.prepare(reference_to(claim))
    two = "default/claim-0 (UID claim-0-uid), default/claim-1 (UID claim-1-uid)"
    assert node.users.holding(GPU) == f"2 claims have {GPU} or a part of it: {two}"
    for claim in claims[2:]:
        node.plugin.state.prepare(reference_to(claim))
    text = node.users.holding(GPU)
    assert text is not None
    assert text.startswith(f"9 claims have {GPU} or a part of it: {two}, ")
    assert text.endswith("default/claim-6 (UID claim-6-uid) and 2 more")


def test_a_claim_for_admin_access_counts_too(tmp_path: Path) -> None:
    claim = make_claim("claim", (0,), adminAccess=True)
    node = Node(tmp_path, {"claim": claim}, FakePods())
    node.plugin.state.prepare(reference_to(claim))
    assert node.users.holding(GPU) is not None


def test_a_broken_checkpoint_of_which_nothing_is_known_may_be_about_any_gpu(tmp_path: Path) -> None:
    claim = make_claim("claim", (0,))
    node = Node(tmp_path, {"claim": claim}, FakePods())
    node.plugin.state.prepare(reference_to(claim))
    (checkpoint,) = tmp_path.rglob("claim-uid.json")
    (spec,) = (tmp_path / "cdi").iterdir()
    named = spec.read_bytes()
    checkpoint.write_bytes(b"{")
    spec.unlink()
    node.plugin.node_claims.look_at_each()
    text = node.users.holding(GPU)
    assert text is not None
    assert text.startswith("claim UID claim-uid, whose checkpoint ")
    assert node.users.holding(OTHER) is not None
    spec.write_bytes(named)
    assert (node.users.holding(GPU) is None, node.users.holding(OTHER)) == (False, None)


@pytest.mark.parametrize("device", [GPU, PART])
def test_what_a_pod_of_this_node_was_given_and_has_not_prepared_is_in_use(tmp_path: Path, device: DeviceName) -> None:
    node = Node(tmp_path, {"claim": part_claim(device)}, pod_of("claim"))
    assert node.users.allocated(GPU) == f"claim default/claim (UID claim-uid) has {GPU} or a part of it"
    assert node.users.allocated(OTHER) is None


@pytest.mark.parametrize(
    "claim",
    [part_claim(GPU, driver="other.example"), part_claim(GPU, pool="node-2"), claim_of("claim", None), None],
)
def test_claims_of_other_drivers_nodes_and_without_devices_are_not(tmp_path: Path, claim: ResourceClaim | None) -> None:
    node = Node(tmp_path, {} if claim is None else {"claim": claim}, pod_of("claim"))
    assert node.users.allocated(GPU) is None
    assert node.asked == ["claim"]


def test_a_pod_that_has_ended_uses_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, {"claim": part_claim(GPU)}, pod_of("claim", phase="Succeeded"))
    assert node.users.allocated(GPU) is None


def test_a_claim_that_is_prepared_does_not_count_as_waiting_for_it_and_one_made_anew_under_its_name_does(
    tmp_path: Path,
) -> None:
    former = make_claim("claim", (1,))
    claims = {"claim": former}
    node = Node(tmp_path, claims, pod_of("claim"))
    node.plugin.state.prepare(reference_to(former))
    assert node.users.allocated(OTHER) is None
    claims["claim"] = claim_anew(GPU)
    assert node.users.allocated(GPU) == f"claim default/claim (UID anew-uid) has {GPU} or a part of it"


def test_before_the_pods_are_known_nobody_can_say(tmp_path: Path) -> None:
    node = Node(tmp_path, {}, FakePods(synced=False))
    assert node.users.allocated(GPU) == "the pods of this node are not known yet"
