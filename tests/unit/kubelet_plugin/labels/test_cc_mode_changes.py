"""All GPUs are switched or none: killed at each step, with a program that fails, lies and dies, and by chance."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dracaena.api.errors import DracaenaError
from dracaena.kubelet_plugin.changes.pci_hand import FunctionOpenError
from dracaena.kubelet_plugin.labels.cc_mode_changes import (
    CcModeChanges,
    DriverRefusedError,
    ModeRefusedError,
    ModeStuckError,
)
from dracaena.kubelet_plugin.labels.follower import InUseError
from dracaena.kubelet_plugin.ports import NotOfferedError, WriteHangsError
from dracaena.kubelet_plugin.prepare.journals.cc_modes import ModeStep
from support.cc_mode_node import BOUND, GUEST, HOST, CcNode
from support.fake_gpu_tools import FAULTS
from support.killed_steps import StopError


@pytest.fixture
def node(tmp_path: Path) -> CcNode:
    return CcNode(tmp_path)


class Killed:
    """Ends the process at the n-th step."""

    def __init__(self, left: int = 1 << 30) -> None:
        self.left = left
        self.seen: list[str] = []

    def __call__(self, what: str) -> None:
        self.seen.append(what)
        self.left -= 1
        if self.left == 0:
            raise StopError


def is_whole(node: CcNode, mode: str) -> None:
    """All GPUs are in a mode for good, with their drivers."""
    assert node.hardware.modes() == dict.fromkeys(BOUND, mode)
    assert node.hardware.after_a_reset() == dict.fromkeys(BOUND, mode), "nothing waits for the next reset"
    assert node.bound() == BOUND


def test_all_gpus_are_switched_read_and_given_back_to_their_drivers(node: CcNode) -> None:
    change = node.change("on")
    assert (change.step, change.mode, change.drivers, change.problem) == (ModeStep.BINDING, "on", BOUND, "")
    is_whole(node, "on")
    assert node.closed == ["switching the GPUs to mode on of confidential computing"]
    noted = node.notes.read()
    assert (noted.change, noted.modes) == (change, dict.fromkeys(BOUND, "on"))
    node.notes.end()
    assert node.notes.refusal() is None
    node.change("off")
    is_whole(node, "off")


def test_no_gpu_is_touched_while_a_claim_or_a_process_has_one(node: CcNode) -> None:
    node.user, written = "claim a/b has a GPU of this node", list(node.bus.written)
    with pytest.raises(InUseError, match="claim a/b"):
        node.change("on")
    node.user, node.bus.open_by[GUEST] = None, [4711]
    with pytest.raises(
        FunctionOpenError, match=r"0000:3b:00.0 is open in python \(PID 4711\): the kernel would wait .*; end them"
    ):
        node.change("on")
    assert (node.bus.written, node.program.queries) == (written, [])
    assert node.notes.read().change is None


def test_what_another_process_has_begun_or_brought_on_meanwhile_is_not_done_again(node: CcNode) -> None:
    """Its pod may be about to get a GPU: the note that this one has read is old by now."""
    stopped = Killed(12)
    node.start(stopped)
    with suppress(StopError):
        node.change("on")
    node.start()
    read = node.notes.read().change
    assert read is not None
    done = node.go_on()
    assert done is not None
    assert done != read
    attempts: tuple[Callable[[], object], ...] = (lambda: node.changes.go_on(read), lambda: node.change("on"))
    for again in attempts:
        switched, written = len(node.program.switches), list(node.bus.written)
        with pytest.raises(InUseError, match="another process of the plugin is changing the mode"):
            again()
        assert (len(node.program.switches), node.bus.written) == (switched, written)
        assert node.notes.read().change == done
    node.notes.end()
    with pytest.raises(InUseError):
        node.changes.go_on(read)
    is_whole(node, "on")


def test_our_own_handles_are_closed_first(node: CcNode) -> None:
    node.drivers.own = {HOST: [1]}
    node.change("on")
    is_whole(node, "on")


def test_a_process_that_opens_a_gpu_between_the_looks_ends_the_change_and_all_is_as_before(node: CcNode) -> None:
    def opens(_path: str) -> None:
        node.bus.open_by[GUEST] = [17]

    node.drivers.before_write = opens
    with pytest.raises(FunctionOpenError, match="PID 17"):
        node.change("on")
    is_whole(node, "off")
    assert node.notes.read().change is None


def test_a_gpu_that_cannot_is_found_out_before_any_is_switched(node: CcNode) -> None:
    node.hardware.set(GUEST, capable=False)
    with pytest.raises(ModeRefusedError, match=f"{GUEST}.*not supported"):
        node.change("on")
    assert node.program.switches == []
    is_whole(node, "off")
    noted = node.notes.read()
    assert noted.refused is not None
    assert (noted.change, noted.refused.mode) == (None, "on")


@pytest.mark.parametrize("gpu", [HOST, GUEST])
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.startswith("hangs")])
def test_where_one_gpu_fails_all_are_back_or_nobody_gets_one(node: CcNode, fault: str, gpu: str) -> None:
    node.hardware.faults({gpu: fault})
    outcome: str | type[Exception]
    try:
        outcome = node.change("on").mode
    except DracaenaError as error:
        outcome = type(error)
    if outcome == "off" or outcome is ModeRefusedError:
        is_whole(node, "off")
    else:
        assert outcome is ModeStuckError
        assert node.notes.refusal() is not None
        assert node.bound() == dict.fromkeys(BOUND), "no driver has a GPU of which nobody knows the mode"
    assert outcome == {"lies": "off", "no-query": ModeRefusedError}.get(fault, ModeStuckError)


@pytest.mark.parametrize("fault", ["fails", "dies-before-set", "dies-after-set", "fails-after-reset", "lies"])
@pytest.mark.parametrize("gpu", [HOST, GUEST])
def test_a_fault_that_passes_leaves_all_gpus_in_the_mode_of_before(node: CcNode, fault: str, gpu: str) -> None:
    node.hardware.faults({gpu: fault})
    tried: list[str] = []

    def passes(what: str) -> None:
        if what == f"after switching {gpu}" and not tried:
            tried.append(what)
            node.hardware.faults({})

    node.start(passes)
    change = node.change("on")
    assert (change.mode, change.step, change.refused) == ("off", ModeStep.BINDING, "on")
    assert change.problem
    is_whole(node, "off")
    assert node.notes.read().modes == dict.fromkeys(BOUND, "off")


def test_a_mode_that_was_written_without_a_reset_is_not_left_behind(node: CcNode) -> None:
    """It shows in no answer, and takes effect when a virtual machine resets the GPU."""
    node.hardware.set(GUEST, pending="on")
    node.change("off")
    is_whole(node, "off")


def test_a_node_of_two_modes_is_not_taken_back_to_two(node: CcNode) -> None:
    node.hardware.set(HOST, mode="devtools")
    node.hardware.faults({GUEST: "lies"})
    with pytest.raises(ModeStuckError, match=r"No claim gets a GPU of this node.*set it again"):
        node.change("on")
    assert node.notes.refusal() is not None
    with pytest.raises(ModeStuckError):
        node.go_on()


def test_a_program_that_cannot_be_ended_is_waited_for(node: CcNode) -> None:
    waiting = True

    class Stays:
        def switch(self, address: str, mode: str) -> None:
            if waiting:
                raise WriteHangsError("the program cannot be ended")
            node.program.switch(address, mode)

        def __getattr__(self, name: str) -> object:
            return getattr(node.program, name)

    node.changes = CcModeChanges(
        Stays(), node.drivers, node.changes._hand, node._closed, node.notes, node.changes._lock  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(WriteHangsError):
        node.change("on")
    assert node.bound() == dict.fromkeys(BOUND)
    with pytest.raises(WriteHangsError):
        node.go_on()
    waiting = False
    node.go_on()
    is_whole(node, "on")


def test_a_write_to_sys_that_hangs_is_waited_for_and_nothing_else_is_done(node: CcNode) -> None:
    node.drivers.before_write = lambda _path: node.bus.open_by.update({HOST: [17]})
    with pytest.raises(WriteHangsError):
        node.change("on")
    node.start()
    closed = len(node.closed)
    with pytest.raises(WriteHangsError, match="has not ended"):
        node.go_on()
    assert len(node.closed) == closed, "the driver is not closed for nothing"
    node.bus.close(HOST)
    node.go_on()
    is_whole(node, "on")


def test_a_driver_that_does_not_take_a_gpu_in_its_new_mode_keeps_the_node_out_of_use(node: CcNode) -> None:
    node.bus.refusing["nvidia"] = errno.EIO
    with pytest.raises(DriverRefusedError, match=r"are in mode on, and the kernel refuses .*nvidia/bind.*vfio-pci"):
        node.change("on")
    assert node.notes.refusal() is not None
    node.bus.rebind(HOST, "vfio-pci")  # what an admin types
    node.start()
    node.go_on()
    assert node.bound() == dict.fromkeys(BOUND, "vfio-pci")


def test_a_driver_that_is_not_loaded_any_more_takes_the_gpu_when_it_comes(node: CcNode) -> None:
    def unload(what: str) -> None:
        if what == f"after switching {GUEST}":
            node.bus.unload("nvidia")

    node.start(unload)
    node.change("on")
    assert node.bound() == {**BOUND, HOST: None}
    node.bus.load("nvidia")
    assert node.bound() == BOUND


def test_one_driver_that_is_not_loaded_any_more_keeps_no_other_gpu_from_its_own(node: CcNode) -> None:
    def unload(what: str) -> None:
        if what == f"after switching {GUEST}":
            node.bus.unload("vfio_pci")

    node.start(unload)  # that of the GPU that is given back first
    node.change("on")
    assert node.bound() == {HOST: "nvidia", GUEST: None}


def test_gpus_are_asked_only_while_no_claim_has_them(node: CcNode) -> None:
    node.hardware.set(GUEST, mode="on")
    assert node.changes.ask([GUEST], lambda _address: True) == {}
    assert node.program.queries == []
    assert node.changes.ask([GUEST], lambda _address: False) == {GUEST: "on"}
    assert node.notes.modes() == {GUEST: "on"}
    node.hardware.faults({GUEST: "no-query"})
    assert node.changes.ask([GUEST], lambda _address: False) == {}, "it is asked again later"
    node.hardware.set(GUEST, capable=False)
    with pytest.raises(NotOfferedError):
        node.changes.ask([GUEST], lambda _address: False)
    assert node.notes.refusal() is None
    node.notes.begin_asking([GUEST], lambda _address: False)
    node.start()  # killed while it asked
    node.changes.end_asking()
    assert node.notes.refusal() is None


def test_the_order_of_the_notes_and_the_world(node: CcNode) -> None:
    """Each thing is written down before it is done: a process that ends between the two knows of it."""
    seen: list[ModeStep | None] = []

    def look(what: str) -> None:
        if what.startswith(("before writing bus", "before switching")):
            change = node.notes.read().change
            seen.append(None if change is None else change.step)

    node.start(look)
    node.change("on")
    assert seen == [*[ModeStep.UNBINDING] * 2, *[ModeStep.SWITCHING] * 2, *[ModeStep.BINDING] * 2]
