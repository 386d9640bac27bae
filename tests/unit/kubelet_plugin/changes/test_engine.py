"""The engine over a real ledger: whatever is killed, lost or changed by others, nothing is undone beside a claim that
may live, and everything is as it was in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dracaena.api.errors import TemporaryError
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.changes import engine as engine_module
from dracaena.kubelet_plugin.changes.change import Act, End, ForOwner, How, Note, Thing, ThingPlan, thing_of, wanted
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.kinds.time_slices import NotedInterval, TimeSlices
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from dracaena.kubelet_plugin.ports import EffectPendingError, GpuGoneError
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import State
from support.changed_node import BOOT, BOUND, SLOTS, TAKEN, ChangedNode, Slots, ViolationOfChangesError, run_changes
from support.seeds import sampled

SLOT = Thing(BOUND, SLOTS[0])
OTHER = Thing(BOUND, SLOTS[1])
SEEDS = range(60)
"""Each planted fault shows in one of these."""


@pytest.fixture
def node(tmp_path: Path) -> ChangedNode:
    made = ChangedNode(tmp_path, 0)
    made.drivers.update(dict.fromkeys(SLOTS, "nvidia"))
    return made


def claim(node: ChangedNode, uid: str, *slots: str, state: State = State.STARTED) -> ClaimUid:
    """A claim that wants slots, with a checkpoint."""
    made = ClaimUid(uid)
    node.wants[made] = tuple(Effect(BOUND, DeviceName(slot), DeviceName(slot)) for slot in slots)
    node._write(made, state)
    return made


def settle(node: ChangedNode, call: ForOwner, left_s: float = 1.0) -> Mapping[Thing, Any]:
    effects = node.wants[ClaimUid(call.begins or call.ends)]
    return node.engine.settle(map(thing_of, effects), call, lambda: left_s).problems


@pytest.mark.parametrize("seed", sampled(range(20_000), 300, 2_000))
def test_nothing_is_undone_beside_a_claim_that_may_live_and_all_is_as_before_in_the_end(
    tmp_path: Path, seed: int
) -> None:
    run_changes(tmp_path, seed)


def test_the_note_is_written_before_the_act_and_gone_after_the_last(node: ChangedNode) -> None:
    uid, seen = claim(node, "one", SLOTS[0]), []
    node.slots.step = lambda: seen.append(node.ledger.read(SLOT, str))
    assert settle(node, ForOwner(begins=uid)) == {}
    assert seen == [Note(BOOT, {"one": ({},)}, "nvidia")] * 2
    assert settle(node, ForOwner(ends=uid)) == {}
    assert seen[2:] == seen[:2]
    assert (node.drivers[SLOTS[0]], node.ledger.read(SLOT, str)) == ("nvidia", None)


def test_without_a_note_nothing_is_done(node: ChangedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: object) -> None:
        raise TemporaryError("the disk is full")

    uid = claim(node, "one", *SLOTS)
    monkeypatch.setattr(Ledger, "write", full)
    assert settle(node, ForOwner(begins=uid)).keys() == {SLOT, OTHER}
    assert set(node.drivers.values()) == {"nvidia"}


def test_what_is_refused_leaves_no_note_and_what_is_not_answered_leaves_one(node: ChangedNode) -> None:
    uid = claim(node, "one", *SLOTS)
    node.slots.refusing, node.slots.silent = {SLOTS[0]}, {SLOTS[1]}
    assert settle(node, ForOwner(begins=uid)).keys() == {SLOT, OTHER}
    assert node.ledger.things(BOUND) == (OTHER,)
    assert settle(node, ForOwner(ends=uid)).keys() == {OTHER}
    node.slots.silent = set()
    assert settle(node, ForOwner(ends=uid)) == {}
    assert (set(node.drivers.values()), node.ledger.things(BOUND)) == ({"nvidia"}, ())


def test_what_is_refused_over_a_note_that_cannot_be_read_leaves_that_as_it_was(node: ChangedNode) -> None:
    uid = claim(node, "one", SLOTS[0])
    path = node.folder / "ledger" / f"{BOUND}.{SLOTS[0]}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"torn")
    node.slots.refusing = {SLOTS[0]}
    assert settle(node, ForOwner(begins=uid)).keys() == {SLOT}
    assert path.read_bytes() == b"torn"


def test_what_became_known_between_two_steps_is_noted_even_if_the_act_gets_no_answer(
    node: ChangedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(_slots: Slots, act: Act[str]) -> End[str]:
        act.note("its number is 7")
        return End(How.UNANSWERED, TemporaryError("no answer"))

    uid = claim(node, "one", SLOTS[0])
    monkeypatch.setattr(Slots, "_set", half)
    assert settle(node, ForOwner(begins=uid)).keys() == {SLOT}
    assert node.ledger.read(SLOT, str) == Note(BOOT, {"one": ({},)}, "its number is 7")


def test_what_is_noted_between_two_steps_may_be_what_was_noted_before_the_call(
    node: ChangedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = claim(node, "one", SLOTS[0])
    assert settle(node, ForOwner(begins=uid)) == {}
    before = node.ledger.read(SLOT, str)

    def to_and_fro(_slots: Slots, act: Act[str]) -> End[str]:
        act.note("something else")
        act.note("nvidia")
        return End(How.UNANSWERED, TemporaryError("no answer"))

    node.drivers[SLOTS[0]] = "nvidia"
    monkeypatch.setattr(Slots, "_set", to_and_fro)
    assert settle(node, ForOwner(begins=uid)).keys() == {SLOT}
    assert node.ledger.read(SLOT, str) == before


def test_where_one_thing_cannot_be_planned_no_other_of_the_claim_is_changed(
    node: ChangedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid, look = claim(node, "one", *SLOTS), Slots.look

    def open_by_others(self: Slots, thing: Thing, wants: Any) -> str:
        if thing == OTHER:
            raise TemporaryError("a process has it open")
        return look(self, thing, wants)

    monkeypatch.setattr(Slots, "look", open_by_others)
    assert settle(node, ForOwner(begins=uid)).keys() == {OTHER}
    assert (set(node.drivers.values()), node.ledger.things(BOUND)) == ({"nvidia"}, ())


def test_what_cannot_be_undone_keeps_no_other_thing_from_it(node: ChangedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = claim(node, "one", *SLOTS)
    settle(node, ForOwner(begins=uid))
    look = Slots.look

    def open_by_others(self: Slots, thing: Thing, wants: Any) -> str:
        if thing == SLOT:
            raise TemporaryError("a process has it open")
        return look(self, thing, wants)

    monkeypatch.setattr(Slots, "look", open_by_others)
    assert settle(node, ForOwner(ends=uid)).keys() == {SLOT}
    assert (node.drivers[SLOTS[0]], node.drivers[SLOTS[1]]) == (TAKEN, "nvidia")


def test_without_time_nothing_begins_and_the_next_call_goes_on(node: ChangedNode) -> None:
    uid = claim(node, "one", *SLOTS)
    problems = settle(node, ForOwner(begins=uid), left_s=0.0)
    assert all(isinstance(problem, EffectPendingError) for problem in problems.values())
    assert (set(node.drivers.values()), node.ledger.things(BOUND)) == ({"nvidia"}, ())
    assert settle(node, ForOwner(begins=uid)) == {}


@pytest.mark.parametrize("begins", [True, False])
def test_looks_that_take_all_the_time_are_followed_by_no_other(
    node: ChangedNode, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """Each may take as long as a program that hangs, and the GPUs of the claim are held for as long."""
    uid, looks = claim(node, "one", *SLOTS), []
    if not begins:
        settle(node, ForOwner(begins=uid))

    def slow(_slots: Slots, thing: Thing, _wants: Any) -> str:
        looks.append(thing)
        raise TemporaryError("it hangs")

    monkeypatch.setattr(Slots, "look", slow)
    call = ForOwner(begins=uid) if begins else ForOwner(ends=uid)
    problems = node.engine.settle((SLOT, OTHER), call, lambda: 1.0 - len(looks)).problems
    assert len(looks) == 1
    assert len(problems) == (1 if begins else 2)
    assert sum(isinstance(each, EffectPendingError) for each in problems.values()) == len(problems) - 1


def test_a_look_that_fails_is_the_last_for_a_claim_that_begins(
    node: ChangedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid, looks = claim(node, "one", *SLOTS), []

    def broken(_slots: Slots, thing: Thing, _wants: Any) -> str:
        looks.append(thing)
        raise TemporaryError("it hangs")

    monkeypatch.setattr(Slots, "look", broken)
    assert settle(node, ForOwner(begins=uid)).keys() == {SLOT}
    assert looks == [SLOT]


def test_a_claim_that_got_to_no_note_keeps_nothing_and_restores_nothing(node: ChangedNode) -> None:
    waiting, owner = claim(node, "waiting", SLOTS[0]), claim(node, "owner", SLOTS[0])
    settle(node, ForOwner(begins=owner))
    assert settle(node, ForOwner(ends=waiting)) == {}
    assert node.drivers[SLOTS[0]] == TAKEN
    del node.claims.good[waiting]
    claim(node, "waiting", SLOTS[0])
    settle(node, ForOwner(ends=owner))
    assert node.drivers[SLOTS[0]] == "nvidia"


def test_a_claim_ends_although_a_gpu_that_others_use_too_is_away(
    node: ChangedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = claim(node, "one", SLOTS[0]), claim(node, "two", SLOTS[0])
    settle(node, ForOwner(begins=one))
    settle(node, ForOwner(begins=two))

    def away(*_given: object) -> str:
        raise GpuGoneError("it is away")

    monkeypatch.setattr(Slots, "look", away)
    monkeypatch.setattr(Slots, "asked", lambda self, wants: len(wants))
    assert settle(node, ForOwner(ends=one)) == {}
    note = node.ledger.read(SLOT, str)
    assert isinstance(note, Note)
    assert note.owners.keys() == {"two"}
    assert settle(node, ForOwner(ends=two)) == {}
    assert node.ledger.read(SLOT, str) is None


def test_a_thing_that_stays_is_a_trouble_of_the_sweep(node: ChangedNode) -> None:
    uid = claim(node, "one", SLOTS[0])
    told: list[Trouble] = []
    settle(node, ForOwner(begins=uid))
    (path,) = node.folder.glob("ledger/*.json")
    path.write_bytes(b"torn")
    node.claims.good.clear()
    assert node.engine.sweep(BOUND, lambda found, _: told.extend(found)) == 0
    assert [(each.subject, path.name in each.text) for each in told] == [(SLOTS[0], True)]
    assert (node.drivers[SLOTS[0]], path.exists()) == (TAKEN, True)


def test_a_trouble_of_a_gpu_that_a_call_has_is_neither_over_nor_told_again(node: ChangedNode) -> None:
    events: list[object] = []
    troubles = NodeTroubles(PluginMetrics(CollectorRegistry()), lambda *event: events.append(event))
    tell = partial(troubles.update, "unclaimed")
    settle(node, ForOwner(begins=claim(node, "one", SLOTS[0])))
    (path,) = node.folder.glob("ledger/*.json")
    path.write_bytes(b"torn")
    node.claims.good.clear()
    node.engine.sweep(BOUND, tell)
    said = troubles.words()
    assert path.name in (said or "")
    with ThreadPoolExecutor(1) as call, node.engine._gpu_lock(node.engine.gpu(SLOT)).hold():
        call.submit(node.engine.sweep, BOUND, tell).result()
    assert troubles.words() == said
    node.engine.sweep(BOUND, tell)
    assert len(events) == 1
    path.unlink()
    with ThreadPoolExecutor(1) as call, node.engine._gpu_lock(node.engine.gpu(SLOT)).hold():
        call.submit(node.engine.sweep, BOUND, tell).result()
    assert troubles.words() is None, "there is nothing any more that a call could have"


def test_a_sweep_does_not_count_what_was_refused_as_undone(node: ChangedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(node, ForOwner(begins=claim(node, "one", SLOTS[0])))
    node.claims.good.clear()
    monkeypatch.setattr(Slots, "_set", lambda *_given: End(How.REFUSED))
    with capture_logs() as logs:
        assert node.engine.sweep(BOUND) == 0
    assert [each["event"] for each in logs] == ["nothing is left to undo"]


# Planted faults


def act_before_the_note(patch: pytest.MonkeyPatch) -> None:
    note = ChangeEngine._note

    def late(self: ChangeEngine, each: Any, call: ForOwner) -> bool:
        if each.plan.act is None or not each.wants:
            return note(self, each, call)
        kind = self.kinds[each.thing.kind]
        kind.do([Act(each.thing, each.plan.act, (), lambda _noted: None)], lambda: 1.0)
        return note(self, each, call)

    patch.setattr(ChangeEngine, "_note", late)


def unsure_owners_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        engine_module,
        "wanted",
        lambda thing, noted, now, unsure, call: wanted(thing, noted, [c for c in now if not c.provisional], (), call),
    )


def before_is_overwritten_by_our_own_value(patch: pytest.MonkeyPatch) -> None:
    plan = TimeSlices.plan

    def forgetful(self: TimeSlices, wants: Any, seen: Any, note: Any) -> ThingPlan[Any, Any]:
        made = plan(self, wants, seen, note)
        return ThingPlan(NotedInterval(seen, made.noted.ours), made.act) if made.noted is not None else made

    patch.setattr(TimeSlices, "plan", forgetful)


def what_somebody_else_set_is_replaced(patch: pytest.MonkeyPatch) -> None:
    plan = TimeSlices.plan

    def ruthless(self: TimeSlices, wants: Any, seen: Any, note: Any) -> ThingPlan[Any, Any]:
        return (
            plan(self, wants, seen, note) if wants or not isinstance(note, Note) else ThingPlan(act=note.noted.before)
        )

    patch.setattr(TimeSlices, "plan", ruthless)


def the_note_goes_before_the_restore(patch: pytest.MonkeyPatch) -> None:
    note = ChangeEngine._note

    def hasty(self: ChangeEngine, each: Any, call: ForOwner) -> bool:
        due = note(self, each, call)
        if due and not each.wants:
            self._ledger.drop(each.thing)
        return due

    patch.setattr(ChangeEngine, "_note", hasty)


def ours_forgets_earlier_values(patch: pytest.MonkeyPatch) -> None:
    plan = TimeSlices.plan

    def forgetful(self: TimeSlices, wants: Any, seen: Any, note: Any) -> ThingPlan[Any, Any]:
        made, interval = plan(self, wants, seen, note), self.asked(wants)
        if made.noted is None or interval is None:
            return made
        return ThingPlan(NotedInterval(made.noted.before, (interval,)), made.act)

    patch.setattr(TimeSlices, "plan", forgetful)


def notes_are_never_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "drop", lambda *_given: None)


def a_retry_that_finds_its_checkpoint_writes_no_note(patch: pytest.MonkeyPatch) -> None:
    """What two records of one fact led to: the second was not written where the first was found."""
    planned, begun = ChangeEngine._planned, set[object]()

    def trusting(self: ChangeEngine, kind: Any, thing: Thing, call: ForOwner) -> Any:
        made, key = planned(self, kind, thing, call), (id(self._claims), call.begins, thing)
        if key in begun:
            return engine_module._Planned(thing, made.before, made.wants, ThingPlan(None, made.plan.act))
        if call.begins:
            begun.add(key)
        return made

    patch.setattr(ChangeEngine, "_planned", trusting)


@pytest.mark.parametrize(
    "plant",
    [
        act_before_the_note,
        unsure_owners_are_forgotten,
        before_is_overwritten_by_our_own_value,
        what_somebody_else_set_is_replaced,
        the_note_goes_before_the_restore,
        ours_forgets_earlier_values,
        notes_are_never_dropped,
        a_retry_that_finds_its_checkpoint_writes_no_note,
    ],
)
def test_planted_faults_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(ViolationOfChangesError):  # noqa: PT012 - one of the seeds
        for seed in SEEDS:
            run_changes(tmp_path / str(seed), seed)
