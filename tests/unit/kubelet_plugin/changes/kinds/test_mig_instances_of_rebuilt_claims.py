"""Claims whose checkpoints broke or were lost while their pods run: each gets back its own MIG device, and no other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dracaena.api.errors import DracaenaError
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.gpu_driver.thread import WedgedError
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.ports import EffectPendingError
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from support.fake_mig import CHANGES
from support.mig_claims import Claims
from support.mig_node import ask_at_once, mig_node
from support.plugin import ThreadLock, reference_to


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Claims]:
    with mig_node() as mig:
        yield Claims(tmp_path, mig)


def lose(claims: Claims, claim: ResourceClaim) -> None:
    """Remove a claim's checkpoint behind the plugin's back; its CDI spec stays."""
    (claims.folder / "claims" / f"{claim.metadata.uid}.json").unlink()
    claims.node.node_claims.look_at_each()


def lose_all(claims: Claims, claim: ResourceClaim) -> None:
    lose(claims, claim)
    claims.node.node_claims.remove_spec(reference_to(claim).uid)


DAMAGES = pytest.mark.parametrize(
    "damage", [Claims.break_checkpoint, lose, lose_all], ids=["broken", "lost", "lost with its spec"]
)


def rebuild(claims: Claims, claim: ResourceClaim) -> PreparedClaim:
    """Do what the sweeper does, or kubelet where nothing is left that the sweeper would find."""
    return claims.node.state.prepare(reference_to(claim))


def prepared_two(claims: Claims) -> ResourceClaim:
    """Prepare a claim of two MIG devices."""
    claim = claims.claim("lost", claims.place("3g.40gb", 4), claims.place("1g.10gb", 0))
    claims.node.state.prepare(reference_to(claim))
    return claim


def files(claims: Claims) -> dict[str, bytes]:
    """Return all files except the copies of broken ones."""
    return {name: data for name, data in claims.node.files().items() if not name.endswith(".broken")}


def changes(claims: Claims) -> list[str]:
    """Return what the driver was asked to change by the process of now."""
    return [each for each in claims.mig.fake.calls if each in CHANGES]


@DAMAGES
def test_a_claim_that_is_rebuilt_has_its_mig_devices_again(
    claims: Claims, damage: Callable[[Claims, ResourceClaim], None]
) -> None:
    claim = prepared_two(claims)
    before = files(claims)
    damage(claims, claim)
    claims.restart()
    rebuild(claims, claim)
    claims.node.recovery.follow_devices()
    assert changes(claims) == []
    assert files(claims) == before
    troubles, _ = claims.node.recovery.follow_devices()
    assert list(troubles) == []
    claims.node.state.unprepare(reference_to(claim))
    assert claims.mig.hardware.layout(0) == []
    assert claims.notes() == []


def of_another_claim(note: bytes) -> bytes:
    return note.replace(b"lost-uid", b"some-uid")


def of_another_device(note: bytes) -> bytes:
    return note.replace(b"MIG-0000", b"MIG-1111")


def of_another_number(note: bytes) -> bytes:
    return note.replace(b'"number":1', b'"number":2')


def of_another_profile(note: bytes) -> bytes:
    return note.replace(b'"profile":"3g.40gb","start"', b'"profile":"4g.40gb","start"')


def of_an_earlier_boot(note: bytes) -> bytes:
    return note.replace(b"boot-1", b"boot-0")


def rewritten(change: Callable[[bytes], bytes], file: bytes) -> bytes:
    """A file of the ledger with another note, as if that had been written."""
    note = change(bytes(msgspec.json.decode(file, type=dict[str, msgspec.Raw])["note"]))
    checksum = "sha256:" + hashlib.sha256(note).hexdigest()
    return msgspec.json.encode({"checksum": checksum, "note": msgspec.Raw(note)})


@pytest.mark.parametrize("damage", [Claims.break_checkpoint, lose], ids=["broken", "lost"])
@pytest.mark.parametrize(
    "note",
    [
        of_another_claim,
        of_another_device,
        of_another_number,
        of_another_profile,
        of_an_earlier_boot,
        lambda _note: b"rubbish",
    ],
)
def test_a_device_that_no_note_gives_to_the_claim_is_neither_used_nor_destroyed(
    claims: Claims, note: Callable[[bytes], bytes], damage: Callable[[Claims, ResourceClaim], None]
) -> None:
    claim = claims.claim("lost", claims.place("3g.40gb", 4))
    claims.node.state.prepare(reference_to(claim))
    path = claims.note_of(claims.place("3g.40gb", 4))
    changed = rewritten(note, path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    damage(claims, claim)
    before = claims.mig.hardware.layout(0)
    claims.restart()
    with pytest.raises(DracaenaError, match=r"memory slices 4 to 7 .* taken by GPU instance 1"):
        rebuild(claims, claim)
    claims.node.state.unprepare(reference_to(claim))
    assert (changes(claims), claims.mig.hardware.layout(0)) == ([], before)


@pytest.mark.parametrize("compute", [True, False], ids=["", "half made"])
def test_an_instance_that_an_admin_made_with_the_number_of_the_noted_one_is_not_taken(
    claims: Claims, compute: bool
) -> None:
    claim = claims.claim("lost", claims.place("3g.40gb", 4))
    claims.node.state.prepare(reference_to(claim))
    lose(claims, claim)
    claims.mig.hardware.gpus[0].instances.clear()
    claims.mig.hardware.put(0, "3g.40gb", 4, compute=compute)
    before = claims.mig.hardware.layout(0)
    claims.restart()
    with pytest.raises(DracaenaError, match="taken by GPU instance 1"):
        rebuild(claims, claim)
    claims.node.state.unprepare(reference_to(claim))
    assert (changes(claims), claims.mig.hardware.layout(0)) == ([], before)


def test_a_claim_gets_no_device_of_one_of_which_only_the_note_is_left(claims: Claims) -> None:
    lost, later = (claims.claim(name, claims.place("3g.40gb", 4)) for name in ("lost", "later"))
    claims.node.state.prepare(reference_to(lost))
    lose_all(claims, lost)
    with pytest.raises(DracaenaError, match="taken by GPU instance 1"):
        claims.node.state.prepare(reference_to(later))
    assert len(claims.mig.hardware.layout(0)) == 1
    assert claims.sweep() == 0
    claims.node.state.unprepare(reference_to(lost))
    claims.node.state.prepare(reference_to(later))
    lose(claims, later)
    claims.restart()
    rebuild(claims, later)
    assert changes(claims) == []


@DAMAGES
def test_devices_stay_when_the_rebuild_of_their_claim_fails(
    claims: Claims, damage: Callable[[Claims, ResourceClaim], None]
) -> None:
    """Only kubelet knows that no container uses what the claim had."""
    claim = prepared_two(claims)
    damage(claims, claim)
    instances = claims.mig.hardware.gpus[0].instances
    number = next(number for number, each in instances.items() if each.profile.name == "1g.10gb")
    instances.pop(number)
    claims.mig.hardware.put(0, "1g.10gb", 0)
    before = claims.mig.hardware.layout(0)
    claims.restart()
    for _ in range(2):
        with pytest.raises(DracaenaError, match=f"memory slice 0 .* taken by GPU instance {number}"):
            rebuild(claims, claim)
        claims.restart()
    assert (changes(claims), claims.mig.hardware.layout(0)) == ([], before)
    claims.node.state.unprepare(reference_to(claim))
    assert claims.mig.hardware.layout(0) == [("1g.10gb", 0, 1)]


@pytest.mark.parametrize("damage", [Claims.break_checkpoint, lose], ids=["broken", "lost"])
def test_a_claim_that_ends_before_it_has_its_devices_again_takes_them_along(
    claims: Claims, damage: Callable[[Claims, ResourceClaim], None]
) -> None:
    def wedge(what: str, _work: Any, _deadline_s: float) -> object:
        raise WedgedError(f"{what}: the NVIDIA driver does not answer")

    claim = prepared_two(claims)
    damage(claims, claim)
    claims.mig.ask = wedge
    with pytest.raises(EffectPendingError):
        rebuild(claims, claim)
    claims.mig.ask = ask_at_once
    claims.node.state.unprepare(reference_to(claim))
    assert claims.mig.hardware.layout(0) == []
    assert claims.notes() == []


def test_a_sweep_that_waits_for_the_gpu_of_a_claim_that_is_rebuilt_meanwhile_leaves_its_device(claims: Claims) -> None:
    """The other instance of the plugin rebuilds it: kubelet has unprepared the claim and asks for it again."""
    claim = claims.claim("lost", claims.place("3g.40gb", 4))
    (device,) = claims.node.state.prepare(reference_to(claim)).devices
    lose_all(claims, claim)
    found = []
    claims.node.gpu_locks[claims.gpus[0]] = LateLock(lambda: found.append(rebuild(claims, claim)))
    assert claims.sweep() == 0
    assert [each.devices for each in found] == [(device,)]
    assert claims.mig.hardware.layout(0) == [("3g.40gb", 4, 1)]


class LateLock(ThreadLock):
    """Whoever first waits for it gets it after somebody else has had it."""

    def __init__(self, others: Callable[[], object]) -> None:
        super().__init__()
        self._others = [others]

    @contextmanager
    def hold(self, within_s: float | None = None) -> Iterator[None]:
        if self._others:
            self._others.pop()()
        with super().hold(within_s):
            yield


def test_a_planted_roll_back_is_found(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangeEngine, "is_owner", lambda _engine, _thing, _owner: False)
    with pytest.raises(AssertionError):
        test_devices_stay_when_the_rebuild_of_their_claim_fails(claims, lose_all)
