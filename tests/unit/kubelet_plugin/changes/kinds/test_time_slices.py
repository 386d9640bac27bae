"""Time slices of shared GPUs: set with the first share, put back with the last, whatever is killed when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.changes.change import Note, ThingPlan, Wants
from dracaena.kubelet_plugin.changes.kinds.time_slices import NotedInterval, TimeSlices
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.device_kinds.enforcement import NodeEnforcement
from dracaena.kubelet_plugin.device_kinds.table import kinds_on
from dracaena.kubelet_plugin.prepare.effects import TIME_SLICE
from dracaena.kubelet_plugin.prepare.journals.checkpoint import State
from support.fake_nvidia_smi import FakeTimeSlices
from support.killed_steps import KilledSteps, StopError
from support.plugin import (
    DRIVER,
    NODE,
    FakeClaims,
    PluginNode,
    claim_of,
    device_name,
    gpu_uuid,
    reference_to,
    share_of,
    sharing_config,
)

DEFAULT, SHORT, MEDIUM, LONG = TimeSliceInterval
GPU = gpu_uuid(0)


def share_claim(
    name: str, interval: str = "Long", *, memory: str = "10Gi", gpu: int = 0, **sharing: str
) -> ResourceClaim:
    result = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device_name(gpu)}
    said = {"strategy": "TimeSlicing", "interval": interval, "enforcement": "BestEffort", **sharing}
    share = share_of(memory, share_id=f"share-of-{name}")
    return claim_of(name, {"results": [{**result, **share}], "config": [sharing_config(**said)]})


def plugin(folder: Path, slices: FakeTimeSlices, *claims: ResourceClaim, **parts: Any) -> PluginNode:
    return PluginNode(
        folder,
        FakeClaims(*claims),
        kind_of=kinds_on(lambda: NodeEnforcement(time_slices=None)),
        kinds=[TimeSlices(slices)],
        **parts,
    )


def sweep(node: PluginNode) -> int:
    return node.engine.sweep(TIME_SLICE, node._told_of)


def damage_note(node: PluginNode, how: str) -> None:
    for path in (node.folder / "ledger").glob("*.json"):
        path.unlink() if how == "lost" else path.write_bytes(b"torn")


def lose(node: PluginNode, claim: ResourceClaim) -> None:
    """Lose all that a claim has on the node but the ledger, as a disk may."""
    (node.folder / "claims" / f"{reference_to(claim).uid}.json").unlink()
    (node.folder / f"cdi/gpu.dracaena.dev-claim_{reference_to(claim).uid}.json").unlink()
    node.node_claims.look_at_each()


def break_checkpoint(node: PluginNode, claim: ResourceClaim) -> None:
    (node.folder / "claims" / f"{reference_to(claim).uid}.json").write_bytes(b"rubbish")
    node.node_claims.look_at_each()


def on_gpu(interval: TimeSliceInterval) -> FakeTimeSlices:
    return FakeTimeSlices(**{GPU: interval})


def test_an_interval_is_set_with_the_first_share_and_put_back_with_the_last(tmp_path: Path) -> None:
    one, other, slices = share_claim("one"), share_claim("other"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, one, other)
    node.state.prepare(reference_to(one))
    assert slices.intervals[GPU] is LONG
    node.state.prepare(reference_to(other))
    node.state.unprepare(reference_to(one))
    assert slices.intervals[GPU] is LONG
    node.state.unprepare(reference_to(other))
    assert slices.intervals[GPU] is MEDIUM


def test_the_default_interval_is_set_too_where_an_admin_has_set_another(tmp_path: Path) -> None:
    claim, slices = share_claim("one", "Default"), on_gpu(LONG)
    node = plugin(tmp_path, slices, claim)
    node.state.prepare(reference_to(claim))
    assert slices.intervals[GPU] is DEFAULT
    node.state.unprepare(reference_to(claim))
    assert slices.intervals[GPU] is LONG


def test_what_an_admin_sets_meanwhile_is_left_alone(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, claim)
    node.state.prepare(reference_to(claim))
    slices.intervals[GPU] = SHORT
    node.state.unprepare(reference_to(claim))
    assert slices.intervals[GPU] is SHORT


def test_where_nobody_can_tell_the_interval_the_drivers_default_is_put_back(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    slices.readable = False
    node = plugin(tmp_path, slices, claim)
    node.state.prepare(reference_to(claim))
    node.state.unprepare(reference_to(claim))
    assert slices.intervals[GPU] is DEFAULT


def test_two_intervals_never_meet_on_one_gpu(tmp_path: Path) -> None:
    long, short, slices = share_claim("long"), share_claim("short", "Short"), on_gpu(DEFAULT)
    node = plugin(tmp_path, slices, long, short)
    node.state.prepare(reference_to(long))
    with pytest.raises(DeviceHeldError, match="time slices of different intervals, Short and Long: a GPU has one"):
        node.state.prepare(reference_to(short))
    node.state.unprepare(reference_to(long))
    node.state.prepare(reference_to(short))
    assert slices.intervals[GPU] is SHORT


def test_after_a_broken_checkpoint_the_interval_stays_until_its_claim_ends_and_not_longer(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, claim)
    node.state.prepare(reference_to(claim))
    assert sweep(node) == 0
    break_checkpoint(node, claim)
    assert (sweep(node), slices.intervals[GPU]) == (0, LONG), "its containers may run"
    node.state.unprepare(reference_to(claim))
    assert slices.intervals[GPU] is MEDIUM
    slices.intervals[GPU] = LONG
    assert (sweep(node), slices.intervals[GPU]) == (0, LONG), "an admin's"


def test_the_interval_stays_while_a_claim_whose_checkpoint_was_lost_has_a_spec(tmp_path: Path) -> None:
    """Its containers may run; once the API answers, it gets its checkpoint back or loses its spec."""
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, claim)
    node.state.prepare(reference_to(claim))
    (node.folder / "claims" / f"{reference_to(claim).uid}.json").unlink()
    node.node_claims.look_at_each()
    assert (sweep(node), slices.intervals[GPU]) == (0, LONG)
    assert node.recovery.drop_stray_spec(reference_to(claim).uid)
    assert (sweep(node), slices.intervals[GPU]) == (1, MEDIUM)


def test_a_gpu_that_a_call_works_on_is_left_to_that_call(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, claim)
    node.state.prepare(reference_to(claim))
    lose(node, claim)
    with ThreadPoolExecutor(1) as sweeper, node.gpu_lock(device_name(0)).hold():
        assert (sweeper.submit(sweep, node).result(), slices.intervals[GPU]) == (0, LONG)
    assert (sweep(node), slices.intervals[GPU]) == (1, MEDIUM)


def test_a_share_after_a_lost_one_restores_what_was_there_before_both(tmp_path: Path) -> None:
    lost, later, slices = share_claim("lost"), share_claim("later", "Short"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, lost, later)
    node.state.prepare(reference_to(lost))
    lose(node, lost)
    node.state.prepare(reference_to(later))
    assert slices.intervals[GPU] is SHORT
    assert sweep(node) == 0, "a share has time slices"
    slices.intervals[GPU] = LONG  # as if the later share had been killed before it set its own
    node.state.unprepare(reference_to(later))
    assert slices.intervals[GPU] is MEDIUM
    assert sweep(node) == 0


def test_what_somebody_has_set_after_a_lost_share_is_what_the_next_one_restores(tmp_path: Path) -> None:
    lost, later, slices = share_claim("lost"), share_claim("later"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, lost, later)
    node.state.prepare(reference_to(lost))
    lose(node, lost)
    slices.intervals[GPU] = SHORT
    node.state.prepare(reference_to(later))
    node.state.unprepare(reference_to(later))
    assert slices.intervals[GPU] is SHORT


def test_a_note_of_another_boot_restores_nothing_and_goes(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    plugin(tmp_path, slices, claim, boot_id="boot-0").state.prepare(reference_to(claim))
    (note,) = tmp_path.glob("ledger/time-slice.*.json")
    node = plugin(tmp_path, slices, claim)
    assert (sweep(node), slices.intervals[GPU], note.exists()) == (0, LONG, False)


def test_while_a_note_is_undone_a_checkpoint_of_an_earlier_boot_that_came_back_stays_as_it_is(tmp_path: Path) -> None:
    """A backup of the folder may have been put back, or a disk may have lost the last writes."""
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    plugin(tmp_path, slices, claim, boot_id="boot-0").state.prepare(reference_to(claim))
    checkpoint = tmp_path / "claims" / f"{reference_to(claim).uid}.json"
    earlier = checkpoint.read_bytes()
    slices.intervals[GPU] = MEDIUM
    node = plugin(tmp_path, slices, claim)
    node.recovery.enter_boot()
    node.state.prepare(reference_to(claim))
    checkpoint.write_bytes(earlier)
    node.node_claims.look_at_each()
    seen = list[tuple[bytes, int]]()
    slices.before_each = lambda: seen.append((checkpoint.read_bytes(), len(node.node_claims.current())))
    node.state.unprepare(reference_to(claim))
    assert seen
    assert set(seen) == {(earlier, 0)}
    assert not checkpoint.exists()


def test_where_the_note_is_broken_the_interval_stays_and_admins_are_told_until_a_share_sets_one(tmp_path: Path) -> None:
    claim, later, slices = share_claim("one"), share_claim("later", "Short"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, claim, later)
    node.state.prepare(reference_to(claim))
    (note,) = tmp_path.glob("ledger/time-slice.*.json")
    note.write_bytes(note.read_bytes().replace(b"Medium", b"Short"))
    lose(node, claim)
    for _ in range(2):
        assert (sweep(node), slices.intervals[GPU], note.exists()) == (0, LONG, True)
        (told,) = node.troubles
        assert (told.reason, told.subject) == ("GpuNotRestored", device_name(0))
        assert f"its note time-slice.{device_name(0)}.json is broken (its checksum is wrong)" in told.text
        assert "on the node: `nvidia-smi compute-policy --list`; it is tried again" in told.advice
    node.state.prepare(reference_to(later))
    assert slices.intervals[GPU] is SHORT
    node.state.unprepare(reference_to(later))
    assert (sweep(node), node.troubles, slices.intervals[GPU]) == (0, [], DEFAULT)


def test_a_claim_whose_time_slices_are_not_undone_logs_why_and_not_that_they_were(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, claim)
    node.state.prepare(reference_to(claim))
    (note,) = tmp_path.glob("ledger/time-slice.*.json")
    note.write_bytes(note.read_bytes()[:20])
    with node.node_claims.hold():  # as if it had not come so far
        (checkpoint,) = node.node_claims.current()
        node.node_claims._write(replace(checkpoint, state=State.STARTED))
    with capture_logs() as logs:
        node.state.unprepare(reference_to(claim))
    events = [each["event"] for each in logs]
    assert "nothing is undone" in events
    assert "effect undone" not in events


def test_a_note_that_a_power_cut_tore_is_gone_in_the_next_boot(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, claim, boot_id="boot-0")
    node.recovery.enter_boot()
    node.state.prepare(reference_to(claim))
    (note,) = tmp_path.glob("ledger/time-slice.*.json")
    note.write_bytes(note.read_bytes()[:20])
    slices.intervals[GPU] = DEFAULT
    node = plugin(tmp_path, slices, claim)
    node.recovery.enter_boot()
    assert (sweep(node), node.troubles, note.exists()) == (0, [], False)


def test_a_gpu_that_is_away_keeps_its_note_until_it_can_be_asked(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, claim)
    node.state.prepare(reference_to(claim))
    lose(node, claim)
    interval = slices.intervals.pop(GPU)
    assert (sweep(node), node.troubles) == (0, []), "it has a taint"
    slices.intervals[GPU] = interval
    assert (sweep(node), slices.intervals[GPU]) == (1, MEDIUM)


def test_what_the_driver_cannot_is_refused_by_name_unless_the_config_allows_it(tmp_path: Path) -> None:
    required = share_claim("required", memory="80Gi", enforcement="Required")
    allowed, slices = share_claim("allowed"), on_gpu(DEFAULT)
    slices.problem = "this product has no time slices"
    node = plugin(tmp_path, slices, required, allowed)
    with pytest.raises(PermanentError, match=f"TimeSlicing for {device_name(0)}: this product has no time slices"):
        node.state.prepare(reference_to(required))
    assert node.node_claims.of(reference_to(required).uid) is None
    node.state.prepare(reference_to(allowed))
    node.state.unprepare(reference_to(allowed))
    assert node.node_claims.of(reference_to(allowed).uid) is None


def test_a_gpu_that_is_lost_keeps_nobody_from_ending(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    node = plugin(tmp_path, slices, claim)
    node.state.prepare(reference_to(claim))
    del slices.intervals[GPU]
    node.state.unprepare(reference_to(claim))
    assert node.node_claims.of(reference_to(claim).uid) is None


def test_after_a_reboot_or_a_reload_of_the_driver_its_default_stays(tmp_path: Path) -> None:
    claim, slices = share_claim("one"), on_gpu(MEDIUM)
    plugin(tmp_path, slices, claim).state.prepare(reference_to(claim))
    slices.intervals[GPU] = DEFAULT
    plugin(tmp_path, slices, claim, boot_id="boot-2").state.unprepare(reference_to(claim))
    assert slices.intervals[GPU] is DEFAULT
    node = plugin(tmp_path, slices, claim, boot_id="boot-2")
    node.state.prepare(reference_to(claim))
    slices.intervals[GPU] = DEFAULT  # the driver was loaded anew
    node.state.unprepare(reference_to(claim))
    assert slices.intervals[GPU] is DEFAULT


WANTED: Wants = {"one": ({"interval": "Long", "required": False},)}
OTHERS: Wants = {"gone": ({"interval": "Short", "required": False},)}


@pytest.mark.parametrize(
    ("seen", "owners", "before", "ours", "expected_before", "act"),
    [
        (MEDIUM, None, DEFAULT, (), MEDIUM, LONG),
        (None, None, DEFAULT, (), DEFAULT, LONG),
        (LONG, WANTED, MEDIUM, (LONG,), MEDIUM, None),
        (None, WANTED, MEDIUM, (LONG,), MEDIUM, LONG),
        (DEFAULT, WANTED, MEDIUM, (LONG,), MEDIUM, LONG),  # the driver was loaded anew
        (SHORT, OTHERS, MEDIUM, (SHORT,), MEDIUM, LONG),  # what a lost share left
        (DEFAULT, OTHERS, MEDIUM, (SHORT,), DEFAULT, LONG),  # somebody else has set it since
    ],
)
def test_what_is_noted_and_done_for_a_share_follows_from_what_is_seen_and_noted(
    seen: TimeSliceInterval | None,
    owners: Wants | None,
    before: TimeSliceInterval,
    ours: tuple[TimeSliceInterval, ...],
    expected_before: TimeSliceInterval,
    act: TimeSliceInterval | None,
) -> None:
    note = None if owners is None else Note("boot", owners, NotedInterval(before, ours))
    plan = TimeSlices(on_gpu(DEFAULT)).plan(WANTED, seen, note)
    assert plan.noted is not None
    assert (plan.noted.before, LONG in plan.noted.ours, plan.act) == (expected_before, True, act)


@pytest.mark.parametrize(
    ("seen", "ours", "act"),
    [(LONG, (LONG,), MEDIUM), (SHORT, (LONG,), None), (MEDIUM, (MEDIUM,), None), (None, (LONG,), MEDIUM)],
)
def test_what_nobody_wants_is_restored_if_it_is_ours(
    seen: TimeSliceInterval | None, ours: tuple[TimeSliceInterval, ...], act: TimeSliceInterval | None
) -> None:
    note = Note("boot", WANTED, NotedInterval(MEDIUM, ours))
    assert TimeSlices(on_gpu(DEFAULT)).plan({}, seen, note) == ThingPlan(act=act)


def killed(folder: Path, slices: FakeTimeSlices, step: int, work: str, *claims: ResourceClaim) -> bool:
    """Do something to the first claim, on a plugin that is killed at a step: of its files, or of the driver."""
    steps = KilledSteps(step)
    slices.before_each = steps._count
    node = plugin(folder, slices, *claims, steps=steps)
    try:
        (node.state.prepare if work == "prepare" else node.state.unprepare)(reference_to(claims[0]))
    except StopError:
        return True
    finally:
        slices.before_each = lambda: None
    return False


NOTE_DAMAGED = pytest.mark.parametrize("how", ["lost", "broken"])


@NOTE_DAMAGED
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_claim_that_was_prepared_ends_with_its_interval_although_its_note_is_gone(
    tmp_path: Path, how: str, is_killed: bool
) -> None:
    slices, one = on_gpu(MEDIUM), share_claim("one")
    node = plugin(tmp_path, slices, one)
    node.state.prepare(reference_to(one))
    if is_killed:  # after its end has begun
        with node.node_claims.hold():
            (checkpoint,) = node.node_claims.current()
            node.node_claims.begin_again(checkpoint)
        node = plugin(tmp_path, slices, one)
    damage_note(node, how)
    node.state.unprepare(reference_to(one))
    assert slices.intervals[GPU] is DEFAULT, "what was there before is not known any more"
    assert node.ledger.things(TIME_SLICE) == ()


def test_a_claim_that_is_prepared_again_after_a_kill_at_its_very_end_restores_what_an_admin_set(tmp_path: Path) -> None:
    slices, one = on_gpu(MEDIUM), share_claim("one")
    node = plugin(tmp_path, slices, one)
    node.state.prepare(reference_to(one))
    with node.node_claims.hold():
        (checkpoint,) = node.node_claims.current()
        node.node_claims.begin_again(checkpoint)
    slices.intervals[GPU] = MEDIUM  # it is undone and the note is dropped; then the process is killed
    damage_note(node, "lost")
    node = plugin(tmp_path, slices, one)
    node.state.prepare(reference_to(one))
    assert slices.intervals[GPU] is LONG
    node.state.unprepare(reference_to(one))
    assert slices.intervals[GPU] is MEDIUM


@NOTE_DAMAGED
def test_a_share_that_comes_to_others_after_their_note_is_gone_does_not_take_theirs_for_an_admins(
    tmp_path: Path, how: str
) -> None:
    slices, claims = on_gpu(MEDIUM), [share_claim("one"), share_claim("two")]
    node = plugin(tmp_path, slices, *claims)
    node.state.prepare(reference_to(claims[0]))
    damage_note(node, how)
    node.state.prepare(reference_to(claims[1]))
    for claim in claims:
        assert slices.intervals[GPU] is LONG
        node.state.unprepare(reference_to(claim))
    assert slices.intervals[GPU] is DEFAULT


@NOTE_DAMAGED
def test_an_interval_stays_beside_a_claim_of_which_neither_note_nor_checkpoint_can_be_read(
    tmp_path: Path, how: str
) -> None:
    slices, claims = on_gpu(MEDIUM), [share_claim("one"), share_claim("two")]
    node = plugin(tmp_path, slices, *claims)
    for claim in claims:
        node.state.prepare(reference_to(claim))
    damage_note(node, how)
    break_checkpoint(node, claims[1])
    node.state.unprepare(reference_to(claims[0]))
    assert sweep(node) == 0
    assert slices.intervals[GPU] is LONG, "containers of the other one may run"
    node.state.unprepare(reference_to(claims[1]))
    assert slices.intervals[GPU] is DEFAULT


def test_what_a_claim_came_to_want_after_its_end_had_begun_is_not_ours_before_it_is_done(tmp_path: Path) -> None:
    other = gpu_uuid(1)
    slices = FakeTimeSlices(**{GPU: MEDIUM, other: MEDIUM})
    node = plugin(tmp_path, slices, share_claim("one"))
    claim = reference_to(share_claim("one"))
    node.state.prepare(claim)

    def hang() -> None:
        raise TemporaryError("nvidia-smi does not answer")

    slices.before_each = hang
    with pytest.raises(TemporaryError):
        node.state.unprepare(claim)
    node.claims.put(share_claim("one", gpu=1))  # the same claim, allocated again
    with pytest.raises(TemporaryError):
        node.state.prepare(claim)
    slices.before_each = lambda: None
    slices.intervals[other] = LONG  # set by an admin: the claim never came so far
    node.state.unprepare(claim)
    assert slices.intervals == {GPU: MEDIUM, other: LONG}
    assert not list(tmp_path.glob("ledger/*.json"))


def test_what_was_made_for_a_claim_stays_ours_while_it_wants_something_else_of_the_same(tmp_path: Path) -> None:
    """Its note is lost, and the claim is prepared with another interval, which is not made any more."""
    slices = on_gpu(DEFAULT)
    node = plugin(tmp_path, slices, share_claim("one"))
    claim = reference_to(share_claim("one"))
    node.state.prepare(claim)
    with node.node_claims.hold():
        (checkpoint,) = node.node_claims.current()
        node.node_claims.begin_again(checkpoint)
    damage_note(node, "lost")
    node.claims.put(share_claim("one", "Short"))

    def hang() -> None:
        raise TemporaryError("nvidia-smi does not answer")

    slices.before_each = hang
    with pytest.raises(TemporaryError):
        node.state.prepare(claim)
    slices.before_each = lambda: None
    node.state.unprepare(claim)
    assert slices.intervals == {GPU: DEFAULT}
