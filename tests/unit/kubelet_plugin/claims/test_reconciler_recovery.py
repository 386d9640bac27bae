"""What recovery may not take back from claims whose devices the driver numbers anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.device_kinds.cdi_spec import claim_spec
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PublishedPool
from dracaena.kubelet_plugin.store import claim_files
from support.plugin import DRIVER, NODE, PluginNode, claim_of, device_name, make_claim, reference_to
from support.renumbered_gpus import ALL, A, B, node_in, nodes, pool_of

TWO = make_claim("two", (0, 1), reserved_for={"pod-two": "pod-two-uid"})
CHECKPOINT = "claims/two-uid.json"


def broken_node(folder: Path, *claims: ResourceClaim, pool: PublishedPool) -> PluginNode:
    """A node whose pod runs with GPUs 0 and 1, its checkpoint broken, with the GPUs as given from now on."""
    node = node_in(folder, TWO, *claims)
    node.state.prepare(reference_to(TWO))
    (folder / CHECKPOINT).write_bytes(b"x")
    node.pool = pool
    return node


def holds_both(node: PluginNode, *gpus: int) -> bool:
    for number in gpus:
        claim = make_claim(f"other-{number}", (number,))
        node.claims.put(claim)
        with pytest.raises(DeviceHeldError):
            node.state.prepare(reference_to(claim))
    return True


def test_recovery_keeps_the_devices_of_a_broken_checkpoint_when_a_gpu_is_missing(tmp_path: Path) -> None:
    node = broken_node(tmp_path, pool=pool_of(0))
    assert node.recovery.recover(node.pods.values())
    assert holds_both(node, 0)
    assert nodes(node, "two-uid") is None
    with pytest.raises(PrepareError, match="has no device"):
        node.state.prepare(reference_to(TWO))
    node.sweeper.sweep()
    assert holds_both(node, 0)
    node.pool = ALL
    assert holds_both(node, 0, 1)
    assert node.state.prepare(reference_to(TWO)).devices
    assert nodes(node, "two-uid") == ["/dev/nvidia0", "/dev/nvidia1"]
    node.state.unprepare(reference_to(TWO))
    assert node.state.prepare(reference_to(make_claim("other-0", (0,)))).devices


def test_a_broken_checkpoint_whose_new_node_another_claim_holds_gives_no_container_its_stale_spec(
    tmp_path: Path,
) -> None:
    low = make_claim("low", (2,), reserved_for={"pod-low": "pod-low-uid"})
    node = node_in(tmp_path, TWO, low)
    for claim in (TWO, low):
        node.state.prepare(reference_to(claim))
    (tmp_path / CHECKPOINT).write_bytes(b"x")
    again = node_in(tmp_path, TWO, low, pool=pool_of(2, 3, 0, 1))  # GPU 0 has the node of GPU 2 now
    assert again.recovery.recover(again.pods.values()) in (True, False)
    assert nodes(again, "two-uid") is None
    again.state.unprepare(reference_to(low))
    again.recovery.follow_devices()
    assert nodes(again, "two-uid") == ["/dev/nvidia2", "/dev/nvidia3"]


def test_recovery_keeps_the_devices_of_a_claim_whose_config_is_refused_now(tmp_path: Path) -> None:
    node = broken_node(tmp_path, pool=ALL)
    config = {"opaque": {"driver": DRIVER, "parameters": {"kind": "FromTheFuture"}}, "source": "FromClaim"}
    results = [{"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device_name(n)} for n in (0, 1)]
    node.claims.put(claim_of("two", {"results": results, "config": [config]}, reserved_for={"pod-two": "pod-two-uid"}))
    assert node.recovery.recover(node.pods.values())
    assert holds_both(node, 0, 1)
    assert [d.minor for p in node.node_claims.prepared() for d in p.devices] == [0, 1]
    node.claims.put(TWO)
    assert node.recovery.recover(node.pods.values())
    assert nodes(node, "two-uid") == ["/dev/nvidia0", "/dev/nvidia1"]


def test_a_claim_that_moved_gets_no_node_of_a_claim_whose_checkpoint_is_broken(tmp_path: Path) -> None:
    moving = make_claim("moving", (3,))
    node = node_in(tmp_path, TWO, moving)
    for claim in (TWO, moving):
        node.state.prepare(reference_to(claim))
    (tmp_path / CHECKPOINT).write_bytes(b"x")
    again = node_in(tmp_path, moving, pool=pool_of(3, 2, 0, 1))  # the claim of the broken one is gone from the API
    again.recovery.recover(())
    assert nodes(again, "two-uid") == ["/dev/nvidia0", "/dev/nvidia1"]
    assert nodes(again, "moving-uid") is None
    again.state.unprepare(reference_to(TWO))
    again.recovery.follow_devices()
    assert nodes(again, "moving-uid") == ["/dev/nvidia0"]


def test_a_broken_checkpoint_remembers_by_its_spec_which_nodes_containers_have(tmp_path: Path) -> None:
    node = broken_node(tmp_path, pool=pool_of(2, 0, 1))
    assert node.recovery.recover(node.pods.values())
    assert nodes(node, "two-uid") == ["/dev/nvidia1", "/dev/nvidia2"]
    other = make_claim("other", (2,))
    node.claims.put(other)
    with pytest.raises(DeviceHeldError, match="/dev/nvidia0"):
        node.state.prepare(reference_to(other))


def test_nothing_is_granted_while_nothing_tells_what_a_broken_checkpoint_holds(tmp_path: Path) -> None:
    broken_node(tmp_path, B, pool=ALL)
    (tmp_path / "cdi" / "gpu.dracaena.dev-claim_two-uid.json").unlink()
    node = node_in(tmp_path, TWO, B)
    with pytest.raises(TemporaryError, match=r"the checkpoint of claim UID two-uid is not a checkpoint.* no CDI spec"):
        node.state.prepare(reference_to(B))
    assert node.recovery.recover(node.pods.values())
    node.state.prepare(reference_to(B))
    assert holds_both(node, 0, 1)


def test_devices_of_an_allocation_that_was_taken_back_by_force_stay_held_too(tmp_path: Path) -> None:
    node = broken_node(tmp_path, pool=ALL)
    node.claims.put(make_claim("two", (4,), reserved_for={"pod-two": "pod-two-uid"}))
    assert node.recovery.recover(node.pods.values())
    assert nodes(node, "two-uid") == ["/dev/nvidia4"]
    assert holds_both(node, 0, 1, 4)


def test_a_rebuild_that_crashed_is_no_half_preparation_whose_devices_are_free(tmp_path: Path) -> None:
    node = broken_node(tmp_path, pool=ALL)
    prepared = node.state.prepare(reference_to(TWO))
    (tmp_path / CHECKPOINT).write_bytes(b"x")
    node.node_claims.start(prepared)
    node.claims.by_key.clear()
    node.recovery.recover(())
    assert holds_both(node, 0, 1)


def test_an_error_of_ours_in_one_claim_holds_up_the_recovery_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = make_claim("half", (1,))
    node = node_in(tmp_path, A, B, half)
    for claim in (A, B, half):
        node.state.prepare(reference_to(claim))
    unfinished = next(p for p in node.node_claims.prepared() if p.claim.uid == "half-uid")
    node.node_claims.discard(unfinished.claim.uid)
    node.node_claims.start(unfinished)  # as a crash leaves it
    for uid in ("a-uid", "b-uid", "half-uid"):
        (tmp_path / "cdi" / f"gpu.dracaena.dev-claim_{uid}.json").unlink()
    right = claim_spec

    def fails(prepared: PreparedClaim, *rest: Any) -> Any:
        if prepared.claim.uid != "b-uid":
            raise ValueError("an error of ours")
        return right(prepared, *rest)

    monkeypatch.setattr(claim_files, "claim_spec", fails)
    assert not node.recovery.recover(node.pods.values())
    assert nodes(node, "b-uid") == ["/dev/nvidia6"]
    monkeypatch.undo()
    assert node.recovery.recover(node.pods.values())
    assert [nodes(node, uid) for uid in ("a-uid", "half-uid")] == [["/dev/nvidia5"], ["/dev/nvidia1"]]
