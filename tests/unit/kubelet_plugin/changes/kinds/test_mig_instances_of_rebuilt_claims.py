"""Claims whose checkpoints broke or were lost while their pods run: each gets back its own MIG device, and no other."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dracaena.api.errors import DracaenaError
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.gpu_driver.thread import WedgedError
from dracaena.kubelet_plugin.changes.change import Note, Wants
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.kinds.mig_instances import MigInstances, SeenPlace
from dracaena.kubelet_plugin.discovery.mig.instances import MadeInstance
from dracaena.kubelet_plugin.ports import EffectPendingError
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from support.fake_mig import CHANGES, FakeGpuInstance
from support.killed_steps import StopError
from support.mig_claims import NEVER, Claims
from support.mig_node import ask_at_once, mig_node
from support.plugin import ThreadLock, reference_to
from support.seeds import sampled

SEEDS = 10
"""Seeds of `make test`, in which each planted fault is found."""


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


@DAMAGES
def test_a_kill_at_any_step_of_the_rebuild_neither_loses_the_devices_nor_makes_others(
    tmp_path: Path, damage: Callable[[Claims, ResourceClaim], None]
) -> None:
    step, steps = 0, 0
    while not steps:
        step += 1
        with mig_node() as mig:
            claims = Claims(tmp_path / str(step), mig)
            claim = prepared_two(claims)
            before = files(claims)
            damage(claims, claim)
            claims.restart()
            claims.steps.left = step
            try:
                rebuild(claims, claim)
                steps = step - 1
            except StopError:
                claims.restart()
            claims.steps.left = NEVER
            claims.node.recovery.recover(())
            rebuild(claims, claim)
            assert changes(claims) == []
            assert files(claims) == before
            claims.node.state.unprepare(reference_to(claim))
            assert mig.hardware.layout(0) == []
    assert steps > 5, "checkpoint, spec and checkpoint: two steps each"


def test_a_kill_while_the_devices_are_made_leaves_them_to_the_claim_or_to_nobody(tmp_path: Path) -> None:
    """And the checkpoint is lost on top: whatever was made is noted."""
    made_by_then = 0
    is_killed, step = True, 0
    while is_killed:
        step += 1
        with mig_node() as mig:
            claims = Claims(tmp_path / str(step), mig)
            claim = claims.claim("lost", claims.place("3g.40gb", 4))
            is_killed = _killed(claims, step, lambda: claims.node.state.prepare(reference_to(claim)))  # noqa: B023
            made = mig.hardware.layout(0)
            assert bool(made) <= bool(claims.notes())
            made_by_then += bool(made)
            (claims.folder / "claims" / "lost-uid.json").unlink(missing_ok=True)
            claims.restart()
            rebuild(claims, claim)
            was_complete = made == [("3g.40gb", 4, 1)]
            assert not (was_complete and set(changes(claims)) & set(CHANGES))
            claims.node.state.unprepare(reference_to(claim))
            assert mig.hardware.layout(0) == []
            assert claims.notes() == []
    assert made_by_then > 4


def _killed(claims: Claims, step: int, work: Callable[[], object]) -> bool:
    """Do some work that is killed in a step of file work or after a change of a GPU; return whether it was."""
    claims.steps.left = step
    claims.mig.fake.after_change = lambda _symbol: claims.steps.step()
    try:
        work()
    except StopError:
        return True
    finally:
        claims.steps.left = NEVER
        claims.mig.fake.after_change = lambda _symbol: None
    return False


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


class Walk:
    """Claims for places of one GPU that overlap, while checkpoints are lost and an admin makes and destroys instances.
    `given` is what containers have, by the claim: the instances themselves, which nobody but the admin may take.
    """

    def __init__(self, claims: Claims, seed: int) -> None:
        self.claims, self.rng = claims, random.Random(seed)
        self.instances = claims.mig.hardware.gpus[0].instances
        self.strangers: list[FakeGpuInstance] = []
        self.given: dict[str, list[FakeGpuInstance]] = {}
        self.was_broken: set[str] = set()
        self.found_again = 0
        wanted = [("3g.40gb", 4), ("3g.40gb", 4), ("2g.20gb", 4), ("1g.10gb", 0)]
        self.every = [claims.claim(f"c{n}", claims.place(*each)) for n, each in enumerate(wanted)]
        self.every.append(claims.claim("both", claims.place("1g.10gb", 0), claims.place("3g.40gb", 4)))
        self.steps = (self.prepare, self.prepare, self.prepare, self.unprepare, self.damage, self.damage, self.sweep)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.rng.random() < 0.15:
                self.act_as_admin()
            else:
                self.rng.choice(self.steps)(self.rng.choice(self.every))
            there = list(map(id, self.instances.values()))
            for instance in (*self.strangers, *(each for given in self.given.values() for each in given)):
                assert id(instance) in there, "nobody but an admin destroys it"

    def prepare(self, claim: ResourceClaim) -> None:
        name = claim.metadata.name
        had = self.given.get(name)
        calls = len(changes(self.claims))
        with suppress(DracaenaError):
            prepared: list[PreparedClaim] = []
            if _killed(
                self.claims,
                self.rng.randint(1, 40),
                lambda: prepared.append(self.claims.node.state.prepare(reference_to(claim))),
            ):
                self.claims.restart()
                return
            by_uuid = {uuid: each for each in self.instances.values() for uuid in each.compute.values()}
            got = [by_uuid[device.uuid] for device in prepared[0].devices if device.uuid in by_uuid]
            others = [each for other, given in self.given.items() if other != name for each in given]
            assert not set(map(id, got)) & set(map(id, (*self.strangers, *others))), "it is somebody else's"
            assert had is None or {id(each) for each in had} <= {id(each) for each in got}, "they are still its own"
            self.given[name] = got
            self.found_again += len(changes(self.claims)) == calls and had is not None

    def unprepare(self, claim: ResourceClaim) -> None:
        self.given.pop(claim.metadata.name, None)
        with suppress(DracaenaError):
            if _killed(
                self.claims, self.rng.randint(1, 40), lambda: self.claims.node.state.unprepare(reference_to(claim))
            ):
                self.claims.restart()

    def damage(self, claim: ResourceClaim) -> None:
        if not (self.claims.folder / "claims" / f"{claim.metadata.uid}.json").exists():
            return
        way = self.rng.choice([Claims.break_checkpoint, lose, lose_all, lose_all])
        if way is Claims.break_checkpoint:
            self.was_broken.add(claim.metadata.name)
        elif claim.metadata.name in self.was_broken:
            way = lose  # without its spec nothing would show that it did not end
        way(self.claims, claim)

    def sweep(self, _claim: ResourceClaim) -> None:
        with suppress(DracaenaError):
            self.claims.node.recovery.recover(())
        self.claims.sweep()

    def act_as_admin(self) -> None:
        gone = self.instances.pop(self.rng.choice([*self.instances, 0]), None)
        self.strangers = [each for each in self.strangers if each is not gone]
        self.given = {name: [each for each in given if each is not gone] for name, given in self.given.items()}
        if gone is not None and not self.is_being_made(gone) and self.rng.random() < 0.5:
            self.strangers.append(self.claims.mig.hardware.put(0, gone.profile.name, gone.placement.start))

    def is_being_made(self, instance: FakeGpuInstance) -> bool:
        """Whether a note claims whatever is at the place of an instance: it has no UUID yet."""
        ledger = self.claims.mig.ledger
        notes = [ledger.read(each, MadeInstance) for each in ledger.things(MIG_INSTANCE)]
        return any(
            isinstance(note, Note) and note.noted.uuid is None and note.noted.start == instance.placement.start
            for note in notes
        )


def walk(folder: Path, seed: int) -> int:
    """Return how often a claim was given its devices again although nothing but their record was left."""
    with mig_node(count=1) as mig:
        walked = Walk(Claims(folder, mig), seed)
        walked.run(40)
        return walked.found_again


@pytest.mark.parametrize("seed", sampled(range(600), SEEDS, 60))
def test_containers_keep_their_devices_and_strangers_theirs_whatever_is_lost(tmp_path: Path, seed: int) -> None:
    walk(tmp_path, seed)


def for_any_claim(patch: pytest.MonkeyPatch) -> None:
    plan = MigInstances.plan

    def planned(kind: MigInstances, wants: Wants, seen: SeenPlace, note: Any) -> Any:
        if isinstance(note, Note) and wants:
            note = dataclasses.replace(note, owners=wants)
        return plan(kind, wants, seen, note)

    patch.setattr(MigInstances, "plan", planned)


def by_number_alone(patch: pytest.MonkeyPatch) -> None:
    ours = SeenPlace.ours
    patch.setattr(SeenPlace, "ours", lambda seen, made: ours(seen, dataclasses.replace(made, uuid=None)))


def swept_for_a_lost_claim(patch: pytest.MonkeyPatch) -> None:
    plan = MigInstances.plan

    def planned(kind: MigInstances, wants: Wants, seen: SeenPlace, note: Any) -> Any:
        if isinstance(note, Note) and not wants:
            note = dataclasses.replace(note, owners={})
        return plan(kind, wants, seen, note)

    patch.setattr(MigInstances, "plan", planned)


@pytest.mark.parametrize("plant", [for_any_claim, by_number_alone, swept_for_a_lost_claim])
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        walk_often(tmp_path)


def walk_often(folder: Path) -> None:
    for seed in range(SEEDS):
        walk(folder / str(seed), seed)


def test_a_planted_roll_back_is_found(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangeEngine, "is_owner", lambda _engine, _thing, _owner: False)
    with pytest.raises(AssertionError):
        test_devices_stay_when_the_rebuild_of_their_claim_fails(claims, lose_all)
