"""The machine of a node from a driver that comes late, forgets, changes and hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Gpu, Machine
from dracaena.host.adapters.nvml.library import GpuDriverNotReadyError, NvmlLibrary
from dracaena.host.facts.troubles import Trouble, TroubleKind
from dracaena.host.gpu_driver import thread
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.machine import NvmlMachine
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from dracaena.kubelet_plugin.node.live_machine import (
    INCOMPLETE_S,
    POORER_S,
    READ_DEADLINE_S,
    REREAD_S,
    RESTART_S,
    RETRY_S,
    LiveMachine,
)
from support.clock import FakeClock
from support.fake_nvml import FakeNvml
from support.topologies import topology_from_matrix

MACHINE = Machine(
    name="two",
    gpus=tuple(
        Gpu(uuid=f"GPU-00000000-0000-0000-0000-{at:012}", index=at, minor=at, pci_bus_id=f"0000:{0x18 + at}:00.0")
        for at in range(2)
    ),
    topology=topology_from_matrix([["X", "PIX"], ["PIX", "X"]]),
    driver_version="580.65.06",
)


class Node:
    """A node whose driver is a fake, with its LiveMachine running."""

    def __init__(self, sys_root: Path) -> None:
        self.clock = FakeClock()
        self.nvml: FakeNvml | None = FakeNvml(MACHINE)
        self.changes: list[Machine] = []
        reader = NvmlReader(NvmlLibrary(self._library))
        self.source = NvmlMachine("two", reader, Sysfs(str(sys_root)))
        self.troubles: list[Sequence[Trouble]] = [()]
        self.live = LiveMachine(
            self.source, self.clock, on_change=self.changes.append, on_troubles=self.troubles.append
        )

    def _library(self) -> object:
        if self.nvml is None:
            raise GpuDriverNotReadyError(
                "waiting for the NVIDIA driver: no library", reason=TroubleKind.LIBRARY_MISSING
            )
        return self.nvml

    def reasons(self) -> list[str]:
        return [found.reason for found in self.troubles[-1]]

    def until(self, condition: Callable[[], bool], step_s: float = 0.0, *, hanging: bool = False) -> None:
        """Let fake time pass until the condition holds, some steps of step_s. The runner ends a wait in vain.

        Time stands still while the driver is busy, or a slow test machine would look like a driver that hangs.
        """
        never = threading.Event()
        while not condition():
            if hanging or not self.source.doing():
                self.clock.advance(step_s / 10)
            never.wait(0.002)


@contextmanager
def running(node: Node) -> Iterator[Node]:
    node.live.start()
    try:
        yield node
    finally:
        node.live.stop()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_machine_is_read_once_the_driver_is_there(node: Node) -> None:
    with running(node):
        node.until(lambda: node.live.ready() is None)
        assert [gpu.uuid for gpu in node.changes[-1].gpus] == [gpu.uuid for gpu in MACHINE.gpus]
        assert len(node.changes) == 1


def test_before_the_driver_is_there_it_waits_and_says_so(node: Node) -> None:
    node.nvml = None
    with running(node):
        node.until(lambda: "no library" in (node.live.ready() or ""))
        assert node.changes == []
        node.nvml = FakeNvml(MACHINE)
        node.until(lambda: node.live.ready() is None, RETRY_S)
        assert len(node.changes[-1].gpus) == 2


def test_a_driver_that_hangs_from_the_start_is_named_as_not_ready(node: Node) -> None:
    assert node.nvml is not None
    release = node.nvml.wedged["nvmlDeviceGetUUID"] = threading.Event()
    with running(node):
        node.until(
            lambda: "nvmlDeviceGetUUID (the UUID of GPU 0) has not returned" in (node.live.ready() or ""),
            READ_DEADLINE_S,
            hanging=True,
        )
        release.set()
        node.until(lambda: node.live.ready() is None, RETRY_S)


def test_a_driver_that_hangs_later_leaves_the_last_reading(node: Node) -> None:
    assert node.nvml is not None
    with running(node):
        node.until(lambda: node.live.ready() is None)
        release = node.nvml.wedged["nvmlDeviceGetMemoryInfo"] = threading.Event()
        node.until(lambda: "nvmlDeviceGetMemoryInfo of GPU 0" in (node.live.stale() or ""), REREAD_S, hanging=True)
        assert node.live.ready() is None
        assert len(node.changes[-1].gpus) == 2
        release.set()
        node.until(lambda: node.live.stale() is None, INCOMPLETE_S)


def test_stop_does_not_wait_for_a_driver_that_hangs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it waited, the test would not end within its limit."""
    monkeypatch.setattr(thread, "CLOSE_S", 3600.0)
    assert node.nvml is not None
    release = node.nvml.wedged["nvmlDeviceGetCount_v2"] = threading.Event()
    with running(node):
        node.until(lambda: node.live.hung() is not None, REREAD_S, hanging=True)
    assert not release.is_set()
    release.set()


def test_a_change_of_the_machine_is_told_once(node: Node) -> None:
    assert node.nvml is not None
    with running(node):
        node.until(lambda: node.live.ready() is None)
        node.nvml.machine = replace(MACHINE, driver_version="580.95.05")
        node.until(lambda: len(node.changes) == 2, REREAD_S)
        calls = len(node.nvml.calls)
        node.until(lambda: node.nvml is not None and len(node.nvml.calls) > calls, REREAD_S)
    assert [machine.driver_version for machine in node.changes] == ["580.65.06", "580.95.05"]


def test_a_reading_that_says_the_same_is_told_as_such(node: Node) -> None:
    same: list[int] = []
    node.live = LiveMachine(
        node.source, node.clock, on_change=node.changes.append, on_same=lambda: same.append(len(node.changes))
    )
    with running(node):
        node.until(lambda: node.live.ready() is None)
        assert same == []
        node.until(lambda: len(same) == 2, REREAD_S)
    assert same == [1, 1]
    assert len(node.changes) == 1


def test_a_gpu_that_does_not_answer_for_a_while_stays(node: Node) -> None:
    assert node.nvml is not None
    with running(node):
        node.until(lambda: node.live.ready() is None)
        node.nvml.refuse("nvmlDeviceGetUUID", pynvml.NVML_ERROR_TIMEOUT, gpu=1)
        node.until(lambda: "GPU 1: nvmlDeviceGetUUID says TIMEOUT" in (node.live.stale() or ""), REREAD_S)
        assert len(node.changes[-1].gpus) == 2
        node.nvml.allow()
        node.until(lambda: node.live.stale() is None, INCOMPLETE_S)
    assert len(node.changes) == 1


def test_a_poorer_reading_is_told_as_one_trouble_and_taken_when_it_stays_the_same(node: Node) -> None:
    assert node.nvml is not None
    node.live._gpu_driver.start()  # the looks are made here
    try:
        node.live.look()
        node.nvml.refuse("nvmlDeviceGetUUID", pynvml.NVML_ERROR_UNKNOWN, gpu=1)
        told = len(node.troubles)
        looks = int(POORER_S / INCOMPLETE_S)
        for _ in range(looks):
            node.live.look()
            node.clock.advance(INCOMPLETE_S)
        assert [[one.reason for one in found] for found in node.troubles[told:]] == [["DriverReadingFailed"]] * looks
        assert "GPU 1: nvmlDeviceGetUUID says UNKNOWN" in node.troubles[-1][0].text
        assert len(node.changes) == 1
        node.live.look()
        assert (len(node.changes[-1].gpus), node.live.stale(), node.reasons()) == (1, None, [])
    finally:
        node.live.stop()


def test_a_poorer_reading_that_goes_on_changing_is_not_taken(node: Node) -> None:
    assert node.nvml is not None
    node.live._gpu_driver.start()
    try:
        node.live.look()
        for at in range(2 * int(POORER_S / INCOMPLETE_S)):
            node.nvml.allow()
            node.nvml.refuse("nvmlDeviceGetUUID", pynvml.NVML_ERROR_UNKNOWN, gpu=at % 2)
            node.live.look()
            node.clock.advance(INCOMPLETE_S)
        assert (len(node.changes), node.reasons()) == (1, ["DriverReadingFailed"])
    finally:
        node.live.stop()


@pytest.mark.parametrize("version", [MACHINE.driver_version, "590.10"])
@pytest.mark.parametrize("away", [False, True])
def test_a_driver_that_was_reloaded_is_taken_with_a_dead_gpu(node: Node, version: str, away: bool) -> None:
    """Away: a look was made while it was not loaded. Without that a reload of the same version shows nowhere."""
    node.live._gpu_driver.start()
    try:
        node.live.look()
        if away:
            assert node.nvml is not None
            node.nvml.refuse("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
            node.nvml = None
            node.live.look()
            node.live.look()
        node.source.close()
        node.nvml = FakeNvml(replace(MACHINE, driver_version=version))
        node.nvml.refuse("nvmlDeviceGetUUID", pynvml.NVML_ERROR_UNKNOWN, gpu=1)
        node.live.look()
        taken = away or version != MACHINE.driver_version
        assert len(node.changes[-1].gpus) == (1 if taken else 2)
        assert node.reasons() == ([] if taken else ["DriverReadingFailed"])
        assert (node.live.stale() is None) == taken
    finally:
        node.live.stop()


def test_a_version_that_goes_unanswered_is_no_other_driver(node: Node) -> None:
    assert node.nvml is not None
    node.live._gpu_driver.start()
    try:
        node.live.look()
        node.nvml.refuse("nvmlSystemGetDriverVersion", pynvml.NVML_ERROR_UNKNOWN)
        node.live.look()
        assert (len(node.changes), node.reasons()) == (1, ["DriverReadingFailed"])
    finally:
        node.live.stop()


def test_a_gpu_that_is_lost_at_the_start_joins_when_it_is_back(node: Node) -> None:
    assert node.nvml is not None
    node.nvml.refuse("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    with running(node):
        node.until(lambda: node.live.ready() is None)
        assert len(node.changes[-1].gpus) == 1
        node.nvml.allow()
        node.until(lambda: len(node.changes[-1].gpus) == 2, INCOMPLETE_S)
    assert [len(machine.gpus) for machine in node.changes] == [1, 2]


def test_a_driver_that_is_unloaded_leaves_the_last_reading_and_is_found_again(node: Node) -> None:
    assert node.nvml is not None
    with running(node):
        node.until(lambda: node.live.ready() is None)
        node.nvml.refuse("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        node.nvml = None
        node.until(lambda: "no library" in (node.live.stale() or ""), REREAD_S)
        assert len(node.changes[-1].gpus) == 2
        node.nvml = FakeNvml(replace(MACHINE, driver_version="590.10"))
        node.until(lambda: node.changes[-1].driver_version == "590.10", INCOMPLETE_S)


def test_facts_that_contradict_each_other_are_no_machine(node: Node) -> None:
    twins = tuple(replace(gpu, uuid=MACHINE.gpus[0].uuid) for gpu in MACHINE.gpus)
    node.nvml = FakeNvml(replace(MACHINE, gpus=twins))
    with running(node):
        node.until(lambda: "share one uuid" in (node.live.ready() or ""))


def test_a_machine_that_could_not_be_taken_is_told_again(node: Node) -> None:
    refusals = [BadInputError("not this one")]
    taken: list[Machine] = []

    def take(machine: Machine) -> None:
        if refusals:
            raise refusals.pop()
        taken.append(machine)

    node.live = LiveMachine(node.source, node.clock, on_change=take)
    with running(node):
        node.until(lambda: "not this one" in (node.live.ready() or ""))
        node.until(lambda: bool(taken), REREAD_S)
        node.until(lambda: node.live.stale() is None)
    assert len(taken) == 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, TroubleKind.NOT_LOADED),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, TroubleKind.VERSION_MISMATCH),
        (pynvml.NVML_ERROR_UNKNOWN, TroubleKind.INIT_FAILED),
    ],
)
def test_a_driver_that_cannot_be_opened_is_a_trouble_of_its_kind(node: Node, code: int, reason: TroubleKind) -> None:
    assert node.nvml is not None
    node.nvml.refuse("nvmlInitWithFlags", code)
    with running(node):
        node.until(lambda: node.reasons() == [reason.value])
        node.nvml.allow()
        node.until(lambda: node.live.ready() is None, RETRY_S)
    assert node.reasons() == []


def test_each_other_way_to_have_no_reading_is_a_trouble_of_its_kind(node: Node) -> None:
    whole, node.nvml = node.nvml, None
    with running(node):
        node.until(lambda: node.reasons() == ["DriverLibraryMissing"])
        twins = tuple(replace(gpu, uuid=MACHINE.gpus[0].uuid) for gpu in MACHINE.gpus)
        node.nvml = FakeNvml(replace(MACHINE, gpus=twins))
        node.until(lambda: node.reasons() == ["DriverReadingContradictory"], RETRY_S)
        node.nvml = whole
        node.until(lambda: node.live.ready() is None, RETRY_S)
        assert whole is not None
        release = whole.wedged["nvmlDeviceGetMemoryInfo"] = threading.Event()
        node.until(lambda: node.reasons() == ["DriverSilent"], REREAD_S, hanging=True)
        release.set()
        node.until(lambda: node.reasons() == [], INCOMPLETE_S)


@pytest.mark.parametrize("in_kernel", [False, True])
def test_a_call_that_hangs_for_long_is_worth_a_restart_unless_it_hangs_in_the_kernel(
    node: Node, in_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dracaena.kubelet_plugin.node.live_machine.is_uninterruptible", lambda _thread: in_kernel)
    assert node.nvml is not None
    with running(node):
        node.until(lambda: node.live.ready() is None)
        assert (node.live.hung(), node.live.needs_restart()) == (None, None)
        release = node.nvml.wedged["nvmlDeviceGetMemoryInfo"] = threading.Event()
        node.live.read_soon()
        node.until(lambda: "nvmlDeviceGetMemoryInfo" in node.source.doing())  # no time goes by
        node.until(lambda: node.live.hung() is not None, REREAD_S, hanging=True)
        assert node.live.needs_restart() is None
        node.clock.advance(RESTART_S)
        assert node.live.needs_restart() == (None if in_kernel else node.live.hung())
        release.set()
        node.until(lambda: node.live.hung() is None)


def test_who_has_changed_something_need_not_wait_for_the_next_reading(node: Node) -> None:
    with running(node):
        node.until(lambda: node.live.ready() is None)
        assert node.nvml is not None
        other = replace(MACHINE, driver_version="580.99")
        node.nvml.machine = other
        node.live.read_soon()
        node.until(lambda: len(node.changes) == 2)  # no time goes by
    assert node.changes[-1].driver_version == "580.99"
