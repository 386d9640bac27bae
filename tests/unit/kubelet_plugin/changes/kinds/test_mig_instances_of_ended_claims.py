"""MIG devices whose claim ended with a broken checkpoint, or of which every trace is lost: destroyed once kubelet has
ended the claim, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.api.errors import DracaenaError
from dracaena.api.names import PoolName
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.node.pool import node_pool
from support.mig_claims import Claims
from support.mig_node import mig_node
from support.plugin import DRIVER, NODE, reference_to


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Claims]:
    with mig_node() as mig:
        yield Claims(tmp_path, mig)


def prepared(claims: Claims, name: str, profile: str = "3g.40gb", start: int = 4) -> ResourceClaim:
    claim = claims.claim(name, claims.place(profile, start))
    claims.node.state.prepare(reference_to(claim))
    return claim


def lose_all(claims: Claims, claim: ResourceClaim) -> None:
    """Lose checkpoint and CDI spec: nothing shows that the claim did not end."""
    (claims.folder / "claims" / f"{reference_to(claim).uid}.json").unlink()
    claims.node.node_claims.look_at_each()
    claims.node.node_claims.remove_spec(reference_to(claim).uid)


def test_a_mig_device_whose_claim_ends_with_a_broken_checkpoint_is_destroyed_and_no_other(claims: Claims) -> None:
    lost, kept = prepared(claims, "lost"), prepared(claims, "kept", "1g.10gb", 0)
    before = claims.mig.hardware.layout(0)
    assert claims.sweep() == 0
    checkpoint = claims.folder / "claims" / f"{reference_to(lost).uid}.json"
    data = checkpoint.read_bytes()
    lose_all(claims, lost)
    assert (claims.sweep(), claims.mig.hardware.layout(0)) == (0, before), "it is lost, and its pod may run"
    checkpoint.write_bytes(data)
    claims.break_checkpoint(lost)
    assert (claims.sweep(), claims.mig.hardware.layout(0)) == (0, before), "it may have any device"
    claims.restart()
    claims.node.state.unprepare(reference_to(lost))
    assert claims.mig.hardware.layout(0) == [("1g.10gb", 0, 1)]
    claims.node.state.unprepare(reference_to(kept))
    assert claims.mig.hardware.layout(0) == []
    assert claims.notes() == []


def test_a_mig_device_whose_claim_has_lost_every_trace_is_told_and_goes_when_kubelet_ends_the_claim(
    claims: Claims,
) -> None:
    """Its containers may run: only kubelet knows."""
    lost = prepared(claims, "lost")
    lose_all(claims, lost)
    before = claims.mig.hardware.layout(0)
    for _ in range(2):
        assert (claims.sweep(), claims.mig.hardware.layout(0)) == (0, before)
        (told,) = claims.node.troubles
        assert told.subject == claims.place("3g.40gb", 4)
        assert "claim with UID lost-uid, which has lost its checkpoint and its CDI spec" in told.text
        claims.restart()
    claims.node.state.unprepare(reference_to(lost))
    assert (claims.mig.hardware.layout(0), claims.notes()) == ([], [])
    assert claims.sweep() == 0
    assert claims.node.troubles == []


def test_a_mig_device_that_lies_where_a_lost_one_lay_is_a_strangers(claims: Claims) -> None:
    lost = prepared(claims, "lost")
    lose_all(claims, lost)
    claims.mig.hardware.gpus[0].instances.clear()
    claims.mig.hardware.put(0, "3g.40gb", 4)
    before = claims.mig.hardware.layout(0)
    claims.node.state.unprepare(reference_to(lost))
    assert (claims.mig.hardware.layout(0), claims.notes()) == (before, [])


def test_a_note_that_cannot_be_read_keeps_the_device_and_says_what_an_admin_does(claims: Claims) -> None:
    claim = prepared(claims, "one")
    before = claims.mig.hardware.layout(0)
    (note,) = claims.notes()
    note.write_bytes(b"rubbish")
    assert (claims.sweep(), claims.node.troubles) == (0, []), "a claim has it"
    claims.node.state.unprepare(reference_to(claim))
    assert (claims.sweep(), claims.mig.hardware.layout(0)) == (0, before)
    (told,) = claims.node.troubles
    assert "`nvidia-smi mig -dci` and `-dgi` destroy it once no pod uses it; then remove that file" in told.text
    claims.mig.hardware.gpus[0].instances.clear()
    note.unlink()
    assert (claims.sweep(), claims.node.troubles) == (0, [])


def test_a_note_of_an_earlier_boot_says_nothing_and_goes_with_the_first_sweep(claims: Claims) -> None:
    lose_all(claims, prepared(claims, "one"))
    claims.mig.ledger.boot_id = claims.node.ledger.boot_id = "boot-2"
    assert claims.sweep() == 0
    assert claims.notes() == []


def test_the_device_of_a_claim_goes_with_it_where_its_gpu_is_no_longer_divided_on_demand(claims: Claims) -> None:
    claim = prepared(claims, "one")
    claims.read(node_pool(claims.mig.hardware.machine, DRIVER, PoolName(NODE)))
    assert (claims.sweep(), len(claims.mig.hardware.layout(0))) == (0, 1)
    claims.node.state.unprepare(reference_to(claim))
    assert claims.mig.hardware.layout(0) == []


def test_a_lost_mig_device_is_left_while_a_claim_waits_for_its_place(claims: Claims) -> None:
    lost, later = prepared(claims, "lost"), claims.claim("later", claims.place("3g.40gb", 4))
    lose_all(claims, lost)
    with pytest.raises(DracaenaError, match="taken by GPU instance"):
        claims.node.state.prepare(reference_to(later))
    assert len(claims.mig.hardware.layout(0)) == 1
    claims.node.state.unprepare(reference_to(lost))
    claims.node.state.prepare(reference_to(later))
    claims.node.state.unprepare(reference_to(later))
    assert claims.mig.hardware.layout(0) == []
