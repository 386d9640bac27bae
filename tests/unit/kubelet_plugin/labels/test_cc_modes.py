"""One look after the other at a node's label: what is withheld, what is waited for, what is refused before anything."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.confidential import cc_mode_label
from dracaena.api.machine import Machine
from dracaena.api.names import DeviceName
from dracaena.api.passthrough import passthrough_device_name
from dracaena.kubelet_plugin.labels.cc_modes import AGAIN_S, CcModePorts, CcModes
from dracaena.kubelet_plugin.labels.follower import SETTLE_S, LabelFollower, LabelPorts, LabelReport, LabelState
from dracaena.kubelet_plugin.node.devices import EVERY_GPU
from dracaena.kubelet_plugin.prepare.journals.cc_modes import ModeStep
from support.cc_mode_node import BOUND, GUEST, HOST, CcNode
from support.clock import FakeClock
from support.machines import plain_machine
from support.page_cluster import divided_machine
from support.plugin import DRIVER

LABEL = cc_mode_label(DRIVER)
DONE = "this node is done; published once the driver has been read again"


@dataclass
class Users:
    """Stands in for GpuUsers."""

    has_prepared: str | None = None
    has_allocated: str | None = None
    of_guest: str | None = None
    """Which claim has the GPU of VFIO."""

    def holding(self, gpu: DeviceName | None) -> str | None:
        if gpu == passthrough_device_name(GUEST):
            return self.of_guest
        return self.has_prepared or self.of_guest

    def allocated(self, _gpu: DeviceName | None) -> str | None:
        return self.has_allocated


@dataclass
class Watched:
    """Nothing is read, and nothing published, but when a test says so."""

    node: CcNode
    labels: dict[str, str] | None = field(default_factory=dict)
    users: Users = field(default_factory=Users)
    clock: FakeClock = field(default_factory=FakeClock)
    machine: Machine = field(default_factory=lambda: machine_of("off"))
    capable_host: bool = True
    keeps_mig: bool = False
    unclaimed: str | None = None
    refusal: str | None = None
    withheld: bool | None = None
    shown: bool | None = None
    """Whether the API server shows the taint; None: as soon as it is withheld."""
    asked_to_read: int = 0
    told: list[LabelReport | None] = field(default_factory=list)
    row: CcModes = field(init=False)
    modes: LabelFollower[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin another process of the plugin."""
        self.node.start()
        self.withheld = None
        asked = CcModePorts(
            label=LABEL,
            missing_program=self.node.program.missing,
            read_bus=self.node.drivers.read,
            runs_confidential_guests=lambda: self.capable_host,
            keeps_mig_devices=self.keeps_mig,
            unclaimed=lambda: self.unclaimed,
            driver_refusal=lambda: self.refusal,
            read_soon=self._read_soon,
        )
        ports = LabelPorts(
            key=LABEL,
            default=None,
            labels=lambda: self.labels,
            withhold=self._withhold,
            is_withheld=lambda _node: bool(self.withheld) if self.shown is None else self.shown,
            read_soon=self._read_soon,
            tell=self.told.append,
        )
        users: Any = self.users
        self.row = CcModes(self.node.changes, self.node.notes, users, asked, self.clock)
        self.modes = LabelFollower(self.row, ports, self.clock)
        self.read()

    def _withhold(self, names: Collection[str]) -> None:
        assert set(names) <= {EVERY_GPU}
        self.withheld = bool(names)

    def keeps_all(self) -> bool:
        """Whether all devices are withheld; that none is has been said, too."""
        assert self.withheld is not None
        return self.withheld

    def _read_soon(self) -> None:
        self.asked_to_read += 1

    def read(self) -> None:
        self.modes.take(self.machine)

    def ask(self, mode: str | None) -> None:
        self.labels = {} if mode is None else {LABEL: mode}

    def look(self) -> LabelReport | None:
        self.modes.look()
        return self.told[-1]

    def state(self) -> tuple[LabelState, str]:
        report = self.look()
        assert report is not None
        return report.state, report.reason

    def settle(self) -> None:
        """Let everything pass that a change waits for."""
        self.look()
        self.look()
        self.clock.advance(SETTLE_S)

    def settled(self) -> LabelReport | None:
        """Look, and read what there is then, until nothing changes any more."""
        self.settle()
        for _ in range(4):
            self.look()
            self.read()
        return self.look()


def machine_of(mode: str | None = "off", capable: bool | None = True) -> Machine:
    """What is read of the GPU that the NVIDIA driver has."""
    return plain_machine(1, minor=0, pci_bus_id=HOST, cc_mode=mode, cc_capable=capable)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(CcNode(tmp_path))


def test_without_a_label_nothing_is_withheld_asked_or_told(watched: Watched) -> None:
    assert watched.look() is None
    assert not watched.keeps_all()
    assert watched.node.program.queries == []
    watched.labels = None  # the Node was not seen yet
    watched.modes.look()
    assert len(watched.told) == 1


def test_gpus_that_are_in_the_mode_are_left_alone(watched: Watched) -> None:
    watched.ask("off")
    assert watched.state() == (LabelState.APPLIED, "")
    assert not watched.keeps_all()
    assert (watched.node.program.queries, watched.node.program.switches) == ([GUEST], [])
    watched.look()
    assert watched.node.program.queries == [GUEST], "it is asked once in a boot"


def test_a_taint_that_was_lost_meanwhile_is_waited_for_anew(watched: Watched) -> None:
    watched.ask("on")
    watched.settle()
    watched.shown = False
    assert "are being withheld" in watched.state()[1]
    watched.shown = True
    assert "waiting for pods that already have one" in watched.state()[1]
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "off")
    watched.clock.advance(SETTLE_S)
    assert watched.state() == (LabelState.PENDING, DONE)


def test_the_gpus_are_switched_when_their_taint_was_seen_for_a_while_and_published_when_they_were_read(
    watched: Watched,
) -> None:
    watched.ask("on")
    watched.shown = False
    assert watched.state() == (
        LabelState.PENDING,
        "the mode of 2 of 2 GPUs is off; the devices of this node are being withheld",
    )
    assert watched.keeps_all()
    watched.clock.advance(10 * SETTLE_S)
    assert "being withheld" in watched.state()[1], "the server does not show it yet"
    watched.shown = True
    assert "waiting for pods that already have one" in watched.state()[1]
    watched.clock.advance(SETTLE_S - 1)
    watched.look()
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "off")
    watched.clock.advance(1)
    assert watched.state() == (LabelState.PENDING, DONE)
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "on")
    assert watched.node.bound() == BOUND
    watched.machine = machine_of("on")
    watched.read()
    assert watched.state() == (LabelState.PENDING, DONE), "this one may have been begun before"
    assert watched.node.notes.refusal() is not None
    watched.read()
    assert watched.state() == (LabelState.APPLIED, "")
    assert not watched.keeps_all()
    assert watched.node.notes.refusal() is None
    assert watched.asked_to_read > 0
    assert watched.state() == (LabelState.APPLIED, "")


@pytest.mark.parametrize("who", ["has_prepared", "has_allocated"])
def test_claims_that_have_a_gpu_and_claims_that_were_given_one_are_waited_for(watched: Watched, who: str) -> None:
    watched.ask("on")
    setattr(watched.users, who, "claim a/b has a GPU of this node")
    watched.settle()
    state, why = watched.state()
    assert (state, why) == (
        LabelState.PENDING,
        "the mode of 2 of 2 GPUs is off; claim a/b has a GPU of this node",
    )
    assert watched.keeps_all()
    assert watched.node.program.switches == []
    setattr(watched.users, who, None)
    watched.look()
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "on")


def test_a_gpu_that_is_about_to_be_given_back_from_vfio_is_waited_for(watched: Watched) -> None:
    """Else a driver would be bound to it between two runs of the program."""
    watched.ask("on")
    watched.unclaimed = "VFIO has it for a claim that has ended"
    watched.settle()
    assert watched.state() == (LabelState.PENDING, f"the mode of 2 of 2 GPUs is off; {watched.unclaimed}")
    assert (watched.keeps_all(), watched.node.closed) == (True, [])
    looked: list[str | None] = [None, watched.unclaimed]  # it broke between the look and the lock
    watched.row._ports = replace(watched.row._ports, unclaimed=lambda: looked.pop(0))
    assert watched.state() == (LabelState.PENDING, watched.unclaimed)
    assert (watched.node.program.switches, watched.node.notes.read().change) == ([], None)
    assert watched.keeps_all()
    watched.row._ports = replace(watched.row._ports, unclaimed=lambda: None)
    watched.look()
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "on")


def test_who_has_a_gpu_open_is_named_and_nvml_is_not_closed_again_for_a_minute(watched: Watched) -> None:
    watched.ask("on")
    watched.node.bus.open_by[HOST] = [17]
    watched.settle()
    state, reason = watched.state()
    assert (state, f"{HOST} is open in python (PID 17): " in reason) == (LabelState.PENDING, True)
    assert watched.keeps_all()
    watched.node.bus.open_by.clear()
    assert "PID 17" in watched.state()[1]
    assert len(watched.node.closed) == 1
    watched.clock.advance(AGAIN_S)
    watched.look()
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "on")


def test_a_driver_that_somebody_wants_closed_is_left_to_them(watched: Watched) -> None:
    watched.ask("on")
    watched.refusal = "the NVIDIA driver is released"
    watched.settle()
    assert "is released" in watched.state()[1]
    assert watched.node.closed == []


def test_a_label_that_goes_before_anything_was_changed_ends_it(watched: Watched) -> None:
    watched.ask("on")
    watched.users.has_prepared = "claim a/b"
    watched.settle()
    assert watched.keeps_all()
    watched.ask(None)
    assert watched.look() is None
    assert not watched.keeps_all()
    watched.users.has_prepared = None
    watched.ask("on")
    assert "being withheld" in watched.state()[1] or "waiting for" in watched.state()[1], "it is waited for anew"
    assert watched.node.program.switches == []


def refuse(watched: Watched, change: Callable[[Watched], object], words: str) -> None:
    """Nothing is withheld or touched."""
    change(watched)
    watched.start()
    for _ in range(3):
        watched.clock.advance(SETTLE_S)
        state, why = watched.state()
        assert state is LabelState.FAILED
        assert words in why
        assert not watched.keeps_all()
    assert watched.node.closed == []
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "off")
    assert watched.node.notes.refusal() is None


@pytest.mark.parametrize("mode", ["On", "", "ppcie", "x" * 100])
def test_a_label_that_names_no_mode_is_refused(watched: Watched, mode: str) -> None:
    watched.ask(mode)
    refuse(watched, lambda _watched: None, "expected one of off, on, devtools")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: setattr(w, "capable_host", False), "KVM runs no confidential guests"),
        (lambda w: setattr(w, "machine", machine_of(capable=False)), "says that the GPU at 0000:18:00.0 cannot"),
        (lambda w: w.node.hardware.set(GUEST, capable=False), "is not supported on"),
        (lambda w: w.node.hardware.set(GUEST, ppcie="on"), "protected PCIe"),
        (lambda w: (w.node.bus.device(HOST) / "boot_vga").write_text("1\n"), "drives the machine's display"),
        (lambda w: (w.node.bus.device(GUEST) / "sriov_numvfs").write_text("4\n"), "virtual functions or vGPUs"),
        (lambda w: setattr(w, "machine", replace(machine_of(), vgpu_parents=frozenset({HOST}))), "vGPUs"),
        (lambda w: (w.node.bus.device(GUEST) / "class").write_text("nonsense\n"), "cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_withheld(
    watched: Watched, change: Callable[[Watched], object], words: str
) -> None:
    watched.ask("on")
    refuse(watched, change, words)


def test_a_program_that_is_not_there_is_told_before_anything_is_withheld(watched: Watched) -> None:
    watched.ask("on")
    watched.node.program.is_gone = "no such file"
    assert watched.state() == (LabelState.FAILED, "no such file")
    assert not watched.keeps_all()


def test_switching_off_asks_nothing_of_the_host_or_the_driver(watched: Watched) -> None:
    for address in BOUND:
        watched.node.hardware.set(address, mode="on")
    watched.capable_host, watched.machine = False, machine_of("on", capable=None)
    watched.ask("off")
    watched.start()
    assert watched.settled() == LabelReport("off", LabelState.APPLIED)
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "off")


def test_a_gpu_that_a_claim_has_is_not_asked(watched: Watched) -> None:
    watched.users.of_guest = "claim a/b"
    watched.ask("on")
    assert watched.state()[1].startswith("the mode of 2 of 2 GPUs is not known or off; ")
    watched.settle()
    assert watched.node.program.queries == []
    watched.users.of_guest = None
    watched.clock.advance(AGAIN_S)
    watched.look()
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "on")


def test_a_label_that_is_set_anew_has_gpus_asked_again_that_somebody_else_may_have_changed(watched: Watched) -> None:
    for address in BOUND:
        watched.node.hardware.set(address, mode="on")
    watched.machine = machine_of("on")
    watched.start()
    watched.ask("on")
    assert watched.settled() == LabelReport("on", LabelState.APPLIED)
    watched.node.hardware.set(GUEST, mode="off")
    assert watched.settled() == LabelReport("on", LabelState.APPLIED), "nobody has said that it was changed"
    watched.users.of_guest = "claim a/b"
    watched.ask(None)
    watched.look()
    watched.ask("on")
    assert watched.look() == LabelReport("on", LabelState.APPLIED), "nobody else can have changed it"
    watched.users.of_guest = None
    watched.ask(None)
    watched.look()
    watched.ask("on")
    assert "the mode of 1 of 2 GPUs is off" in watched.state()[1]
    assert watched.keeps_all()
    watched.look()
    assert watched.node.program.queries.count(GUEST) == 2


def test_a_gpu_of_a_virtual_machine_without_a_claim_is_not_asked(watched: Watched) -> None:
    watched.node.bus.open_by[GUEST] = [17]
    watched.ask("on")
    assert watched.state()[1].startswith("the mode of 2 of 2 GPUs is not known or off; ")
    watched.settle()
    assert f"{GUEST} is open in python (PID 17)" in watched.state()[1]
    assert watched.node.program.queries == []
    assert watched.node.notes.refusal() is None


def test_a_mode_that_failed_is_not_tried_again_before_the_label_was_taken_away(watched: Watched) -> None:
    watched.ask("on")
    watched.node.hardware.faults({HOST: "lies"})
    report = watched.settled()
    assert report is not None
    assert report.state is LabelState.FAILED
    assert f"GPU at {HOST} is in mode off after it was reset, expected on" in report.reason
    assert "remove the label and set it again" in report.reason
    assert watched.withheld is False, "all are back in the mode of before"
    tried = len(watched.node.program.switches)
    watched.node.hardware.faults({})
    watched.start()
    assert watched.settled() == report
    assert watched.node.program.switches == []
    assert tried == 4
    watched.ask(None)
    watched.look()
    watched.ask("on")
    assert watched.settled() == LabelReport("on", LabelState.APPLIED)


def test_gpus_that_are_in_two_modes_are_given_to_nobody_until_the_label_is_set_again(watched: Watched) -> None:
    watched.ask("on")
    watched.node.hardware.faults({GUEST: "fails"})
    watched.settle()
    state, why = watched.state()
    assert state is LabelState.FAILED
    assert "No claim gets a GPU of this node" in why
    assert watched.keeps_all()
    for _ in range(2):
        watched.start()
        assert watched.state() == (state, why)
        assert watched.keeps_all()
        assert watched.node.program.queries == [], "an admin may be at work"
    watched.node.hardware.faults({})  # and has mended it
    watched.ask(None)
    assert watched.state() == (state, why)
    watched.ask("on")
    assert watched.settled() == LabelReport("on", LabelState.APPLIED)
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "on")
    assert not watched.keeps_all()


def test_a_change_that_was_begun_is_finished_by_the_next_process_whatever_the_label_says(watched: Watched) -> None:
    watched.node.notes.begin("on", BOUND, lambda: None)
    watched.ask(None)
    watched.start()
    assert watched.state() == (LabelState.PENDING, DONE)
    assert watched.keeps_all()
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "on")
    watched.read()
    watched.read()
    watched.look()
    assert watched.look() is None
    assert not watched.keeps_all()


def test_a_change_whose_program_is_gone_says_so_and_touches_no_driver(watched: Watched) -> None:
    watched.node.notes.begin("on", BOUND, lambda: None)
    watched.start()
    watched.node.program.is_gone = "setting cc-mode-tool is empty"
    assert watched.state() == (LabelState.FAILED, "setting cc-mode-tool is empty")
    assert watched.keeps_all()
    assert watched.node.bound() == BOUND


def test_a_driver_that_refuses_the_new_mode_gets_its_gpu_back_when_the_label_says_the_former_one(
    watched: Watched,
) -> None:
    watched.ask("on")
    watched.node.bus.refusing["nvidia"] = errno.EIO
    watched.settle()
    assert watched.state()[0] is LabelState.FAILED
    assert watched.keeps_all()
    change = watched.node.notes.read().change
    assert change is not None
    assert change.step is ModeStep.BINDING
    watched.node.bus.refusing.clear()
    watched.ask("off")
    assert watched.settled() == LabelReport("off", LabelState.APPLIED)
    assert watched.node.bound() == BOUND


def test_a_process_that_was_killed_while_it_asked_keeps_nobody_from_a_gpu(watched: Watched) -> None:
    watched.node.notes.begin_asking([GUEST], lambda _address: False)
    watched.start()
    watched.look()
    assert watched.node.notes.refusal() is None


def test_mig_devices_of_an_admin_are_not_ended(tmp_path: Path) -> None:
    watched = Watched(CcNode(tmp_path), machine=divided_machine(), keeps_mig=True)
    watched.ask("on")
    refuse(watched, lambda _watched: None, "MIG devices that an admin made")


def test_gpus_that_are_in_the_mode_already_need_neither_the_host_nor_the_program(watched: Watched) -> None:
    watched.ask("on")
    assert watched.settled() == LabelReport("on", LabelState.APPLIED)
    watched.capable_host, watched.node.program.is_gone = False, "no such file"
    assert watched.state() == (LabelState.APPLIED, "")


def test_of_two_instances_each_waits_for_its_own_readings_and_one_ends_the_change(watched: Watched) -> None:
    watched.ask("on")
    watched.settle()
    watched.look()
    other = Watched(watched.node, watched.labels, watched.users, watched.clock)
    assert other.state() == (LabelState.PENDING, DONE)
    for each in (watched, other):
        each.read()
        each.read()
    assert other.state() == (LabelState.APPLIED, "")
    watched.ask("devtools")
    assert watched.state()[0] is LabelState.PENDING
    watched.settle()
    assert watched.settled() == LabelReport("devtools", LabelState.APPLIED)
    assert watched.node.hardware.modes() == dict.fromkeys(BOUND, "devtools")
