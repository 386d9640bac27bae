"""Making and undoing MIG instances on a driver that refuses, fails after it acted, or shows what others made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pynvml
import pytest
from msgspec import convert

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.host.gpu_driver.thread import WedgedError
from dracaena.kubelet_plugin.changes.change import ForOwner, Note, thing_of
from dracaena.kubelet_plugin.discovery.mig.instances import MadeInstance
from dracaena.kubelet_plugin.ports import EffectPendingError
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from support.changed_node import BOOT
from support.fake_mig import (
    CHANGES,
    IN_USE,
    INSUFFICIENT_RESOURCES,
    NO_PERMISSION,
    NOT_FOUND,
    FakeMigHardware,
)
from support.fake_nvml import NOT_SUPPORTED
from support.killed_steps import StopError
from support.mig_geometries import RTX_PRO_6000, divisible_machine
from support.mig_node import MigNode, ask_at_once, instance, mig_node, whole_gpu

PROFILE_CALLS = ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstancePossiblePlacements_v2")


class Claim:
    """A claim that wants one thing, as it is prepared and unprepared."""

    def __init__(self, effect: Effect, name: str = "claim") -> None:
        self.effect = effect
        self.thing = thing_of(effect)
        self.reference = ClaimReference("default", name, ClaimUid(f"{name}-{effect.device}"))

    def make(self, node: MigNode) -> MadeInstance:
        """Have its thing as it is wanted; return what is noted of it then."""
        self.begin(node)
        made = self.noted(node)
        assert made is not None
        return made

    def undo(self, node: MigNode) -> None:
        self._settle(node, ForOwner(ends=self.reference.uid))
        node.claims.good.pop(self.reference.uid, None)
        assert self.noted(node) is None

    def _settle(self, node: MigNode, call: ForOwner) -> None:
        for problem in node.engine.settle([self.thing], call, lambda: 30.0).problems.values():
            raise problem

    def noted(self, node: MigNode) -> MadeInstance | None:
        """What is noted of the instance, None if nothing of it may be ours."""
        found = node.ledger.read(self.thing, MadeInstance)
        return found.noted if isinstance(found, Note) and found.noted.is_asked_for else None

    def note(self, node: MigNode, made: MadeInstance) -> None:
        """Have a process get so far and no further."""
        node.ledger.write(self.thing, Note(BOOT, {self.reference.uid: (self.effect.parameters,)}, made))

    def begin(self, node: MigNode) -> None:
        prepared = PreparedClaim(self.reference, (), wants=(self.effect,))
        node.claims.good[self.reference.uid] = Checkpoint(State.STARTED, BOOT, prepared)
        self._settle(node, ForOwner(begins=self.reference.uid))


def notes(node: MigNode) -> list[MadeInstance]:
    """All that was noted, one after the other."""
    return [convert(json.loads(data)["note"]["noted"], MadeInstance) for _, data in node.files.written]


@pytest.fixture
def node() -> Iterator[MigNode]:
    with mig_node() as made:
        yield made


@pytest.fixture
def ampere() -> Iterator[MigNode]:
    with mig_node("Ampere") as made:
        yield made


def test_an_instance_is_made_at_its_place_and_gone_when_its_claim_goes(node: MigNode) -> None:
    claim = Claim(instance(node, "3g.40gb", 4))
    made = claim.make(node)
    assert node.hardware.layout(0) == [("3g.40gb", 4, 1)]
    asked = MadeInstance("3g.40gb", 4, 4)
    numbered = replace(asked, number=1)
    assert made == replace(numbered, uuid="MIG-00000000-0000-0000-0000-000000000001", nodes=(12, 13))
    assert notes(node) == [asked.as_nothing(), asked, numbered, made]
    claim.undo(node)
    assert node.hardware.layout(0) == []
    assert not node.hardware.gpus[0].mode, "an idle GPU is whole again"


def test_making_and_undoing_may_be_repeated(node: MigNode) -> None:
    claim = Claim(instance(node, "2g.20gb", 2))
    assert claim.make(node) == claim.make(node)
    assert node.hardware.layout(0) == [("2g.20gb", 2, 1)]
    claim.undo(node)
    claim.undo(node)
    assert node.hardware.layout(0) == []


@pytest.mark.parametrize("profile", ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"])
def test_each_profile_gets_the_compute_instance_that_has_all_of_it(node: MigNode, profile: str) -> None:
    Claim(instance(node, profile, 0)).make(node)
    assert node.hardware.layout(0) == [(profile, 0, 1)]


@pytest.mark.parametrize("profile", [each.name for each in RTX_PRO_6000])
def test_each_profile_of_a_gpu_with_graphics_and_media_profiles_is_made_too(profile: str) -> None:
    node = MigNode(FakeMigHardware(divisible_machine(1, "Blackwell", RTX_PRO_6000)))
    start = next(each for each in RTX_PRO_6000 if each.name == profile).placements[-1].start
    claim = Claim(instance(node, profile, start))
    claim.make(node)
    assert node.hardware.layout(0) == [(profile, start, 1)]
    claim.undo(node)
    assert node.hardware.layout(0) == []
    node.library.close()


@pytest.mark.parametrize(("profile", "refused"), [("1g.10gb", 0), ("7g.80gb", 4)])
def test_a_compute_instance_that_is_offered_and_refused_gives_way_to_the_next_with_all_slices(
    node: MigNode, profile: str, refused: int
) -> None:
    node.hardware.refused_compute = {refused}
    Claim(instance(node, profile, 0)).make(node)
    assert node.hardware.layout(0) == [(profile, 0, 1)]


LATE = [
    (symbol, code)
    for symbol in CHANGES
    for code in (pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST)
]
"""What a call may answer after it acted."""


@pytest.mark.parametrize(("symbol", "code"), LATE)
def test_a_call_that_acted_and_then_failed_leaves_nothing_that_nobody_knows(
    node: MigNode, symbol: str, code: int
) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    node.fake.late[symbol] = code
    with suppress(TemporaryError):
        claim.make(node)
    with suppress(TemporaryError):
        claim.undo(node)
    node.start()
    claim.undo(node)
    assert node.hardware.layout(0) == []
    assert not node.hardware.gpus[0].mode


@pytest.mark.parametrize(("symbol", "code"), LATE)
def test_what_was_done_by_a_call_that_failed_is_taken_as_it_is_by_the_next_try(
    node: MigNode, symbol: str, code: int
) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    node.fake.late[symbol] = code
    if "Destroy" not in symbol:
        with pytest.raises(TemporaryError):
            claim.make(node)
    claim.make(node)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 1)]


def test_a_gpu_stays_in_mig_mode_while_other_claims_or_others_have_instances(node: MigNode) -> None:
    one, other = Claim(instance(node, "1g.10gb", 0)), Claim(instance(node, "1g.10gb", 1))
    one.make(node)
    other.note(node, MadeInstance("1g.10gb", 1, 1))
    one.undo(node)
    assert node.hardware.gpus[0].mode, "the other claim is about to make one"
    node.hardware.put(0, "1g.10gb", 5)
    other.make(node)
    other.undo(node)
    assert node.hardware.layout(0) == [("1g.10gb", 5, 1)]
    assert node.hardware.gpus[0].mode


def test_an_instance_of_somebody_else_at_the_place_is_neither_used_nor_destroyed(node: MigNode) -> None:
    node.hardware.put(0, "1g.10gb", 4)
    places = {("1g.10gb", 4): "slice 4", ("3g.40gb", 4): "slices 4 to 7", ("7g.80gb", 0): "slices 0 to 7"}
    for (profile, start), slices in places.items():
        claim = Claim(instance(node, profile, start))
        taken = rf"^memory {slices} of GPU GPU-\S+ (is|are) taken by GPU instance 1 \(1g.10gb at 4\): it goes"
        with pytest.raises(TemporaryError, match=taken) as refused:
            claim.make(node)
        assert (" is taken" in str(refused.value)) is (slices == "slice 4")
        claim.undo(node)
        assert node.hardware.layout(0) == [("1g.10gb", 4, 1)]
        assert notes(node) == []


def test_an_instance_that_took_the_place_at_the_last_moment_is_left_alone(node: MigNode) -> None:
    """Between our look and our call an admin makes the very same instance: the driver refuses ours."""
    claim = Claim(instance(node, "1g.10gb", 4))

    def intrude(symbol: str) -> None:
        if symbol == "nvmlDeviceCreateGpuInstanceWithPlacement":
            node.fake.before_change = lambda _symbol: None
            node.hardware.put(0, "1g.10gb", 4)

    node.fake.before_change = intrude
    with pytest.raises(TemporaryError, match="INSUFFICIENT_RESOURCES"):
        claim.make(node)
    assert notes(node)[-2:] == [MadeInstance("1g.10gb", 4, 1), MadeInstance("1g.10gb", 4, 1).as_nothing()]
    claim.undo(node)
    assert node.hardware.layout(0) == [("1g.10gb", 4, 1)]


def test_an_instance_without_compute_instance_which_no_mig_handle_shows_counts_too(node: MigNode) -> None:
    node.hardware.put(0, "1g.10gb", 4, compute=False)
    with pytest.raises(TemporaryError, match="are taken by GPU instance 1"):
        Claim(instance(node, "3g.40gb", 4)).make(node)


def test_a_gpu_instance_that_gets_no_compute_instance_is_taken_back(node: MigNode) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    node.fake.refuse("nvmlGpuInstanceCreateComputeInstance", INSUFFICIENT_RESOURCES)
    with pytest.raises(TemporaryError, match="INSUFFICIENT_RESOURCES"):
        claim.make(node)
    assert node.hardware.layout(0) == []
    assert notes(node)[-1] == MadeInstance("1g.10gb", 0, 1).as_nothing()
    node.fake.refuse("nvmlGpuInstanceDestroy", IN_USE)
    with pytest.raises(TemporaryError):
        claim.make(node)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 0)]
    node.fake.allow()
    claim.make(node)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 1)], "what was left is completed"


def test_an_instance_in_use_stays_with_its_entry_until_nobody_uses_it(node: MigNode) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    node.hardware.gpus[0].instances[1].busy = True
    with pytest.raises(TemporaryError, match="cannot be destroyed: nvmlComputeInstanceDestroy says IN_USE"):
        claim.undo(node)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 1)]
    node.hardware.gpus[0].instances[1].busy = False
    claim.undo(node)
    assert node.hardware.layout(0) == []


@pytest.mark.parametrize(
    "symbol",
    ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceGetComputeInstances", "nvmlComputeInstanceGetInfo_v2"],
)
def test_something_else_that_is_not_found_does_not_pass_for_the_instance(node: MigNode, symbol: str) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    node.fake.refuse(symbol, NOT_FOUND)
    with pytest.raises(TemporaryError, match="NOT_FOUND"):
        claim.undo(node)
    node.fake.allow()
    claim.undo(node)
    assert node.hardware.layout(0) == []


def test_an_instance_that_an_admin_destroys_meanwhile_is_gone(node: MigNode) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)

    def destroy(symbol: str) -> None:
        if symbol == "nvmlComputeInstanceDestroy":
            node.hardware.gpus[0].instances.clear()

    node.fake.after_change = destroy
    claim.undo(node)
    assert not node.hardware.gpus[0].mode


def test_a_number_that_the_driver_gave_to_another_instance_is_not_destroyed(node: MigNode) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    node.hardware.gpus[0].instances.clear()  # an admin destroyed it, or the driver was loaded anew
    node.hardware.put(0, "2g.20gb", 4)
    claim.undo(node)
    assert node.hardware.layout(0) == [("2g.20gb", 4, 1)]


def test_an_instance_that_somebody_made_in_place_of_ours_is_not_destroyed_and_not_used(node: MigNode) -> None:
    """Same profile, place and number; only the UUID tells them apart."""
    claim = Claim(instance(node, "1g.10gb", 4))
    claim.make(node)
    node.hardware.gpus[0].instances.clear()
    node.hardware.put(0, "1g.10gb", 4)
    with pytest.raises(TemporaryError, match="is taken by GPU instance 1"):
        claim.make(node)
    claim.undo(node)
    assert node.hardware.layout(0) == [("1g.10gb", 4, 1)]


def test_an_instance_is_found_whatever_the_last_reading_knows_of_profiles(node: MigNode) -> None:
    """The first reading of a plugin, or of a driver, may have got no answer; and with mig=existing nobody asks."""
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    node.knows_profiles = False
    claim.make(node)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 1)]
    claim.undo(node)
    assert node.hardware.layout(0) == []
    assert not node.hardware.gpus[0].mode
    with pytest.raises(TemporaryError, match=r"no MIG profile 1g\.10gb as it was last read"):
        claim.make(node)


def test_the_profile_is_named_by_the_number_of_the_driver_that_makes_it(node: MigNode) -> None:
    """The driver was replaced since the last reading."""
    node.renumbered = True
    Claim(instance(node, "3g.40gb", 4)).make(node)
    assert node.hardware.layout(0) == [("3g.40gb", 4, 1)]


@pytest.mark.parametrize("code", [NOT_SUPPORTED, pynvml.NVML_ERROR_TIMEOUT])
@pytest.mark.parametrize("symbol", PROFILE_CALLS)
def test_an_instance_whose_profile_the_driver_does_not_tell_now_keeps_its_entry(
    node: MigNode, symbol: str, code: int
) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    for each in (symbol, "nvmlDeviceGetGpuInstanceProfileInfo"):
        node.fake.refuse(each, code)
    with pytest.raises(TemporaryError):
        claim.undo(node)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 1)]
    node.fake.allow()
    claim.undo(node)
    assert node.hardware.layout(0) == []


@pytest.mark.parametrize("code", [NOT_SUPPORTED, pynvml.NVML_ERROR_TIMEOUT])
@pytest.mark.parametrize("noted", [MadeInstance("1g.10gb", 0, 1), MadeInstance("1g.10gb", 0, 1, 1), None])
def test_an_instance_that_the_driver_does_not_list_in_mig_mode_keeps_its_entry(
    node: MigNode, noted: MadeInstance | None, code: int
) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    if noted is not None:
        claim.note(node, noted)
    node.fake.refuse("nvmlDeviceGetGpuInstances", code)
    with pytest.raises(TemporaryError, match="nvmlDeviceGetGpuInstances says"):
        claim.undo(node)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 1)]
    node.fake.allow()
    claim.undo(node)
    assert node.hardware.layout(0) == []
    assert not node.hardware.gpus[0].mode


def test_an_instance_that_a_killed_plugin_made_is_not_forgotten_for_a_profile_that_is_not_told(node: MigNode) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))

    def kill(symbol: str) -> None:
        if symbol == "nvmlDeviceCreateGpuInstanceWithPlacement":
            raise StopError

    node.fake.after_change = kill
    with pytest.raises(StopError):
        claim.make(node)
    node.start()
    node.fake.refuse("nvmlDeviceGetGpuInstancePossiblePlacements_v2", NOT_SUPPORTED)
    with pytest.raises(TemporaryError):
        claim.make(node)
    assert claim.noted(node) == MadeInstance("1g.10gb", 0, 1)
    node.fake.allow()
    claim.undo(node)
    assert node.hardware.layout(0) == []


def test_a_place_is_made_again_where_the_driver_tells_places_in_mig_mode_only(node: MigNode) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    gpu = node.hardware.gpus[0]
    gpu.instances.clear()  # the driver was loaded anew
    gpu.mode = gpu.pending = False
    node.fake.places_need_mode = True
    claim.make(node)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 1)]


def lose(node: MigNode) -> None:
    node.fake.lost.add(0)


def lose_at_the_last_moment(node: MigNode) -> None:
    node.fake.late["nvmlComputeInstanceDestroy"] = pynvml.NVML_ERROR_GPU_IS_LOST
    node.fake.after_change = lambda _symbol: node.fake.lost.add(0)


@pytest.mark.parametrize("acts", [True, False])
@pytest.mark.parametrize("symbol", ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"])
def test_a_gpu_that_one_call_says_is_lost_and_that_answers_keeps_the_entry(
    node: MigNode, symbol: str, acts: bool
) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    errors = node.fake.late if acts else node.fake.once
    errors[symbol] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(TemporaryError, match="GPU_IS_LOST"):
        claim.undo(node)
    claim.undo(node)
    assert node.hardware.layout(0) == []


def remove(node: MigNode) -> None:
    """As after `nvidia-smi drain`: there is no such GPU."""
    node.fake.refuse("nvmlDeviceGetHandleByUUID", NOT_FOUND)


def unload(node: MigNode) -> None:
    node.library.close()
    node.fake.refuse("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


def leave_out_of_a_reading(node: MigNode) -> None:
    node.fake.refuse("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_UNKNOWN)
    node.left_out.add(node.hardware.machine.gpus[0].uuid)


@pytest.mark.parametrize("vanish", [lose, lose_at_the_last_moment, remove, unload, leave_out_of_a_reading])
def test_what_was_on_a_gpu_that_is_gone_is_undone(node: MigNode, vanish: Callable[[MigNode], None]) -> None:
    """Or its claim could not go before the node is rebooted, and the reboot waits for a drain."""
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    vanish(node)
    claim.undo(node)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_TIMEOUT, NO_PERMISSION])
def test_a_gpu_that_only_refuses_keeps_its_instance_and_the_entry(node: MigNode, code: int) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))
    claim.make(node)
    for symbol in ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMigMode"):
        node.fake.refuse(symbol, code)
        for is_read in (True, False):
            node.is_read = is_read
            with pytest.raises(TemporaryError):
                claim.undo(node)
    node.fake.allow()
    node.is_read = True
    node.left_out.add(node.hardware.machine.gpus[0].uuid)
    with pytest.raises(TemporaryError):  # the driver shows it again: the next reading will
        claim.undo(node)
    node.left_out.clear()
    claim.undo(node)
    assert node.hardware.layout(0) == []


def test_another_gpu_that_is_lost_does_not_pass_for_this_one() -> None:
    """With one GPU off the bus NVML finds none by UUID."""
    with mig_node(count=3) as node:
        claim, other = Claim(instance(node, "1g.10gb", 0, 1)), Claim(instance(node, "2g.20gb", 2, 1))
        claim.make(node)
        node.fake.lost.add(2)
        other.make(node)
        node.fake.once["nvmlDeviceGetUUID"] = pynvml.NVML_ERROR_TIMEOUT
        with pytest.raises(TemporaryError, match="TIMEOUT"):
            claim.undo(node)
        claim.undo(node)
        assert [node.hardware.layout(ordinal) for ordinal in range(3)] == [[], [("2g.20gb", 2, 1)], []]


def test_the_mode_is_believed_by_what_is_in_force_and_not_by_the_call(node: MigNode) -> None:
    node.hardware.gpus[0].watched = True
    claim = Claim(instance(node, "1g.10gb", 0))
    with pytest.raises(TemporaryError, match=r"does not enter MIG mode: nvmlDeviceSetMigMode says IN_USE: .*monitors"):
        claim.make(node)
    assert claim.noted(node) is None
    node.hardware.gpus[0].watched = False
    claim.make(node)


def test_our_own_open_handles_are_closed_before_the_mode_is_changed(node: MigNode) -> None:
    node.library.open()
    opened: list[int] = []
    node.fake.before_change = lambda symbol: opened.append(node.library.session) if "MigMode" in symbol else None
    Claim(instance(node, "1g.10gb", 0)).make(node)
    assert opened == [2]


def test_ampere_is_divided_in_mig_mode_and_stays_in_it(ampere: MigNode) -> None:
    claim = Claim(instance(ampere, "7g.40gb", 0))
    claim.make(ampere)
    claim.undo(ampere)
    assert ampere.hardware.layout(0) == []
    assert ampere.hardware.gpus[0].mode


@pytest.mark.parametrize(("pending", "words"), [(True, "is pending until the GPU is reset"), (False, "is off")])
def test_no_claim_resets_an_ampere_gpu(ampere: MigNode, pending: bool, words: str) -> None:
    gpu = ampere.hardware.gpus[0]
    gpu.mode, gpu.pending = False, pending
    with pytest.raises(TemporaryError, match=f"{words}, and Ampere changes it with a reset"):
        Claim(instance(ampere, "1g.5gb", 0)).make(ampere)
    assert "nvmlDeviceSetMigMode" not in ampere.fake.calls


def test_a_place_that_the_gpu_never_has_is_said_with_those_it_has(node: MigNode) -> None:
    effect = instance(node, "3g.40gb", 0)
    effect = replace(effect, parameters={**effect.parameters, "start": 2})
    with pytest.raises(PermanentError, match=r"no place for MIG profile 3g.40gb at memory slice 2; it can be at: 0, 4"):
        Claim(effect).make(node)


def test_a_profile_that_the_gpu_does_not_have_as_it_was_read_may_be_told_by_the_next_reading(node: MigNode) -> None:
    effect = instance(node, "1g.10gb", 0)
    effect = replace(effect, parameters={**effect.parameters, "profile": "9g.90gb"})
    with pytest.raises(TemporaryError, match=r"no MIG profile 9g.90gb as it was last read.*1g.10gb\+me, .*7g.80gb"):
        Claim(effect).make(node)


def test_a_whole_gpu_leaves_mig_mode_and_says_what_stands_in_its_way(node: MigNode) -> None:
    gpu = node.hardware.gpus[0]
    whole = Claim(whole_gpu(node))
    whole.begin(node)
    assert node.files.written == []
    assert "nvmlDeviceSetMigMode" not in node.fake.calls
    gpu.mode = gpu.pending = True
    whole.begin(node)
    assert not gpu.mode
    node.hardware.put(0, "1g.10gb", 4, compute=False)
    with pytest.raises(TemporaryError, match=r"cannot be used whole: GPU instance 1 \(1g.10gb\) is left"):
        whole.begin(node)
    gpu.instances.clear()
    gpu.watched = True
    with pytest.raises(TemporaryError, match=r"cannot be used whole: .*IN_USE"):
        whole.begin(node)


def test_a_driver_that_does_not_answer_keeps_what_was_begun_and_is_gone_on_with(node: MigNode) -> None:
    claim = Claim(instance(node, "1g.10gb", 0))

    def wedge(what: str, work: Any, _deadline_s: float) -> object:
        answer = work()
        if what.startswith("making"):
            raise WedgedError("the NVIDIA driver does not answer")
        return answer

    node.ask = wedge
    with pytest.raises(EffectPendingError, match="is not ready yet"):
        claim.make(node)
    assert claim.noted(node) == MadeInstance("1g.10gb", 0, 1)
    node.start()
    node.ask = ask_at_once
    assert claim.make(node).number == 1
    assert node.hardware.layout(0) == [("1g.10gb", 0, 1)]
