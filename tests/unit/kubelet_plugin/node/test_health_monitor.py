"""What the monitor makes of what the driver tells, and whom it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import TemporaryError
from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.host.facts.health import GpuEvent, GpuState, Poll
from dracaena.host.facts.troubles import (
    GpuDriverReleasedError,
    GpuDriverTroubleError,
    Trouble,
    TroubleKind,
)
from dracaena.host.gpu_driver.thread import StoppedError
from dracaena.kubelet_plugin.discovery.health.device_health import DeviceHealth, Status
from dracaena.kubelet_plugin.discovery.health.gpu_health import CLEAR_POLLS, LASTS_POLLS, Fault, HealthClass, Rules
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.health_monitor import POLL_S, HealthListeners, HealthMonitor
from support.clock import FakeClock
from support.passthrough import passthrough_gpu
from support.topologies import topology_from_matrix

UUIDS = [f"GPU-00000000-0000-0000-0000-{at:012}" for at in range(2)]
NAMES = [gpu_device_name(uuid) for uuid in UUIDS]
MACHINE = Machine(
    name="two",
    gpus=tuple(Gpu(uuid=uuid, index=at, minor=at) for at, uuid in enumerate(UUIDS)),
    topology=topology_from_matrix([["X", "PIX"], ["PIX", "X"]]),
)
ONE = replace(MACHINE, gpus=MACHINE.gpus[:1], topology=topology_from_matrix([["X"]]))


class Node:
    """A monitor whose looks are made by the test, and what it told."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.states = {uuid: GpuState(uuid, recovery_action=0) for uuid in UUIDS}
        self.happened: list[GpuEvent] = []
        self.error: Exception | None = None
        self.polls = 0
        self.node_faults: tuple[Fault, ...] = ()
        self.faults: list[Mapping[DeviceName, Sequence[Fault]]] = []
        self.statuses: list[tuple[DeviceName, Status]] = []
        self.troubles: list[Sequence[Trouble]] = []
        self.news = 0
        self.clock = FakeClock()
        self.metrics = PluginMetrics(CollectorRegistry())
        self.monitor = HealthMonitor(
            self,
            self._ask,
            self.clock,
            rules or Rules(),
            self.metrics,
            node_faults=lambda: self.node_faults,
            listeners=HealthListeners(
                faults=self.faults.append,
                status=lambda health: self.statuses.append((health.device, health.status)),
                news=self._count,
                troubles=self.troubles.append,
            ),
        )

    def events(self) -> tuple[GpuEvent, ...]:
        happened, self.happened = tuple(self.happened), []
        return happened

    def poll(self) -> Poll:
        self.polls += 1
        return Poll(tuple(self.states.values()))

    def _ask(self, _what: str, work: Callable[[], object], _deadline_s: float) -> object:
        if self.error is not None:
            raise self.error
        return work()

    def release(self, why: str | None) -> None:
        self.error = None if why is None else GpuDriverReleasedError(why)
        self.node_faults = () if why is None else (Fault(HealthClass.UNREADY, "driver-released", message=why),)

    def _count(self) -> None:
        self.news += 1

    def look(self, polls: int = 1) -> tuple[DeviceHealth, ...]:
        for _ in range(polls):
            self.monitor.look()
            self.clock.advance(POLL_S)
        return self.monitor.devices()

    def values(self) -> list[list[str]]:
        return [[fault.value or fault.key for fault in self.faults[-1][name]] for name in NAMES]


@pytest.fixture
def node() -> Node:
    made = Node()
    made.monitor.take(MACHINE)
    return made


def test_before_there_is_a_machine_nothing_is_asked() -> None:
    node = Node()
    assert node.look() == ()
    assert node.polls == 0
    assert node.faults == []


def test_well_devices_are_told_once_and_refreshed_at_each_poll(node: Node) -> None:
    first, second = node.look(), node.look()
    assert [(h.device, h.status, h.message) for h in first] == [(name, Status.HEALTHY, "") for name in NAMES]
    assert second[0].updated_s == first[0].updated_s + POLL_S
    assert (len(node.faults), node.news, node.statuses) == (1, 1, [])


def test_between_polls_only_events_are_looked_at(node: Node) -> None:
    node.look()
    node.clock.advance(-1)
    for _ in range(5):
        node.monitor.look()
    assert node.polls == 1
    node.happened.append(GpuEvent(UUIDS[0], 31))
    node.monitor.look()
    assert node.polls == 2


def test_an_xid_is_held_and_cleared_and_both_are_told(node: Node) -> None:
    node.happened.append(GpuEvent(UUIDS[1], 79))
    assert [h.status for h in node.look()] == [Status.HEALTHY, Status.UNHEALTHY]
    assert node.values() == [[], ["79"]]
    assert [h.status for h in node.look(CLEAR_POLLS)] == [Status.HEALTHY] * 2
    assert node.statuses == [(NAMES[1], Status.UNHEALTHY), (NAMES[1], Status.HEALTHY)]
    assert node.metrics.devices.xids.labels("79")._value.get() == 1


def test_a_programs_own_xid_is_told_on_a_healthy_device(node: Node) -> None:
    node.happened.append(GpuEvent(UUIDS[0], 13))
    health = node.look()[0]
    assert (health.status, health.message) == (Status.HEALTHY, "the driver reported XID 13 (application)")
    assert node.statuses == []


def test_an_instance_that_is_named_for_an_undivided_gpu_is_not_believed(node: Node) -> None:
    node.happened.append(GpuEvent(UUIDS[0], 48, gpu_instance=0))
    assert node.look()[0].message == "the driver reported XID 48 (fatal)"


def test_a_driver_that_does_not_answer_makes_health_unknown_and_in_time_holds_pods_back(node: Node) -> None:
    node.error = TemporaryError("the NVIDIA driver does not answer")
    assert [h.status for h in node.look()] == [Status.UNKNOWN] * 2
    assert node.values() == [[], []]  # told all the same: what is published waits for it
    node.look(LASTS_POLLS - 1)
    assert node.values() == [["silent"], ["silent"]]
    assert node.metrics.devices.health_errors._value.get() > 0
    node.error = None
    node.look(CLEAR_POLLS)
    assert node.values() == [[], []]
    assert [h.status for h in node.monitor.devices()] == [Status.HEALTHY] * 2


def test_a_gpu_that_is_gone_for_good_is_told_as_unhealthy(node: Node) -> None:
    node.look()
    del node.states[UUIDS[1]]
    node.monitor.take(ONE)
    health = node.look()
    assert [(h.device, h.status) for h in health] == [(NAMES[0], Status.HEALTHY), (NAMES[1], Status.UNHEALTHY)]
    assert health[1].message == "the driver does not list this GPU any more"


def test_a_gpu_that_was_read_on_its_way_to_a_virtual_machine_is_not_lost_for_good(node: Node) -> None:
    """One reading falls between the two writes, when neither the NVIDIA driver has it nor VFIO."""
    at = passthrough_gpu(0).pci_bus_id
    node.monitor.take(replace(MACHINE, gpus=(MACHINE.gpus[0], replace(MACHINE.gpus[1], pci_bus_id=at))))
    node.look()
    del node.states[UUIDS[1]]
    handed = passthrough_gpu(0, driver="", is_bound=False, on_demand=True)
    node.monitor.take(replace(ONE, passthrough=(handed,)))
    node.look()
    node.monitor.take(replace(ONE, passthrough=(replace(handed, driver="vfio-pci", is_bound=True),)))
    assert [h.device for h in node.look()] == [NAMES[0]]
    assert list(node.faults[-1]) == [NAMES[0]]


def test_errors_that_memory_could_not_mend_are_told(node: Node) -> None:
    node.states[UUIDS[0]] = replace(node.states[UUIDS[0]], uncorrected_ecc=1)
    node.look()
    node.states[UUIDS[0]] = replace(node.states[UUIDS[0]], uncorrected_ecc=4)
    health = node.look()[0]
    assert (health.status, health.message) == (Status.HEALTHY, "3 uncorrectable ECC errors")


def test_errors_are_told_after_a_poll_that_could_not_count_them(node: Node) -> None:
    well = replace(node.states[UUIDS[0]], uncorrected_ecc=1)
    for state in (well, replace(well, uncorrected_ecc=None, unanswered={"ecc": "TIMEOUT"})):
        node.states[UUIDS[0]] = state
        node.look()
    node.states[UUIDS[0]] = replace(well, uncorrected_ecc=3)
    assert node.look()[0].message == "2 uncorrectable ECC errors"


def test_nvlinks_that_are_down_are_one_trouble_of_their_gpu_and_inform(node: Node) -> None:
    linked = replace(MACHINE, gpus=tuple(replace(gpu, nvlink_count=18) for gpu in MACHINE.gpus))
    node.monitor.take(linked)
    node.look()
    node.monitor.take(replace(linked, gpus=(replace(linked.gpus[0], nvlink_count=15), linked.gpus[1])))
    node.look(LASTS_POLLS - 1)
    assert not node.troubles[-1]
    health = node.look(2)[0]
    assert (health.status, health.message) == (Status.HEALTHY, "3 of its NVLinks are down")
    (told,) = node.troubles[-1]
    assert (told.reason, told.subject) == ("NvLinksDown", UUIDS[0])
    assert (
        f"GPU {UUIDS[0]}: 3 of its NVLinks are down; on the node: `nvidia-smi nvlink -s -i {UUIDS[0]}`" in told.advice
    )
    node.monitor.take(linked)
    node.look(CLEAR_POLLS + 1)
    assert (node.troubles[-1], node.values()) == ((), [[], []])


def test_a_worn_sram_is_one_trouble_of_its_gpu(node: Node) -> None:
    node.states[UUIDS[1]] = replace(node.states[UUIDS[1]], sram_exceeded=True)
    node.look()
    assert [(told.reason, told.subject) for told in node.troubles[-1]] == [("GpuSramErrors", UUIDS[1])]
    assert node.values() == [[], ["threshold-exceeded"]]


def test_devices_are_counted_by_health(node: Node) -> None:
    node.happened.append(GpuEvent(UUIDS[1], 79))
    node.look()
    counts = {status: node.metrics.devices.by_health.labels(status.value)._value.get() for status in Status}
    assert counts == {Status.HEALTHY: 1, Status.UNHEALTHY: 1, Status.UNKNOWN: 0}


def test_a_gpu_that_was_taken_out_is_counted_no_more(node: Node) -> None:
    node.look()
    del node.states[UUIDS[1]]
    node.monitor.take(ONE)
    assert [h.status for h in node.look()] == [Status.HEALTHY, Status.UNHEALTHY]
    counts = {status: node.metrics.devices.by_health.labels(status.value)._value.get() for status in Status}
    assert counts == {Status.HEALTHY: 1, Status.UNHEALTHY: 0, Status.UNKNOWN: 0}


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_jump_of_the_time_of_day_neither_clears_nor_holds_a_fault(node: Node, jump_s: float) -> None:
    node.happened.append(GpuEvent(UUIDS[0], 79))
    node.look()
    for _ in range(CLEAR_POLLS - 1):
        assert node.values() == [["79"], []]
        node.clock.jump(jump_s)
        node.look()
    assert node.values() == [[], []]
    assert node.polls == CLEAR_POLLS


def test_the_end_of_the_driver_thread_ends_the_watch(node: Node) -> None:
    node.error = StoppedError("this program is being stopped")
    with pytest.raises(StoppedError):
        node.monitor.look()


def test_while_the_driver_is_let_go_of_all_devices_are_held_back_and_nothing_else_changes(node: Node) -> None:
    node.states[UUIDS[1]] = replace(node.states[UUIDS[1]], recovery_action=1)
    node.look()
    before, polls = node.values(), node.polls
    node.release("a new driver")
    assert [h.status for h in node.look()] == [Status.UNKNOWN, Status.UNHEALTHY]
    assert node.values() == [["driver-released"], ["driver-released", "gpu-reset"]]
    told = len(node.faults)
    node.look(10)
    assert (node.polls, len(node.faults), node.metrics.devices.health_errors._value.get()) == (polls, told, 0)
    node.release(None)
    node.monitor.look()  # at once
    assert (node.values(), node.polls) == (before, polls + 1)


def test_the_fabric_counts_unless_an_admin_says_that_it_does_not(node: Node) -> None:
    for uuid in UUIDS:
        node.states[uuid] = replace(node.states[uuid], fabric_state=1)
    assert [h.status for h in node.look()] == [Status.UNHEALTHY] * 2
    assert node.values() == [["not-started"]] * 2
    blind = Node(Rules(fabric=False))
    blind.states = node.states
    blind.monitor.take(MACHINE)
    assert [h.status for h in blind.look()] == [Status.HEALTHY] * 2


def test_what_holds_for_the_whole_node_is_told_once_and_not_for_each_device(node: Node) -> None:
    well = dict(node.states)
    node.states = {uuid: replace(state, fabric_state=1) for uuid, state in well.items()}
    node.look(2)
    (told,) = node.troubles[-1]
    assert (told.reason, told.text[:14]) == ("FabricNotReady", "2 of 2 GPUs, G")
    node.states = well
    node.look()
    assert (node.troubles[-1], node.statuses) == ((), [])
    node.release("a new driver")
    node.look()
    assert [told.reason for told in node.troubles[-1]] == ["DriverReleased"]
    node.release(None)
    node.look()
    assert (node.troubles[-1], node.statuses) == ((), [])


@pytest.mark.parametrize("polls_before", [0, 1])
def test_a_driver_that_does_not_answer_is_told_once_and_not_for_each_device(node: Node, polls_before: int) -> None:
    node.look(polls_before)
    for call in range(2 * LASTS_POLLS):  # the call that hangs may be another one each time
        node.error = GpuDriverTroubleError(f"call {call} has not returned", TroubleKind.SILENT)
        node.look()
        assert [told.reason for told in node.troubles[-1]] == ["DriverSilent"]
    assert node.values() == [["silent"], ["silent"]]
    node.error = None
    node.look(CLEAR_POLLS)
    assert node.values() == [[], []]
    assert node.statuses == []


def test_a_device_that_is_silent_by_itself_is_told_and_stays_so_while_the_driver_is_silent(node: Node) -> None:
    node.states[UUIDS[1]] = GpuState(UUIDS[1], silent="GPU 1 says UNKNOWN")
    node.look(LASTS_POLLS)
    assert node.statuses == [(NAMES[1], Status.UNKNOWN)]
    node.error = GpuDriverTroubleError("call 1 has not returned", TroubleKind.SILENT)
    node.look(LASTS_POLLS)
    assert node.statuses == [(NAMES[1], Status.UNKNOWN)]


def test_an_xid_before_the_driver_fell_silent_is_told_of_its_device(node: Node) -> None:
    node.look()
    node.monitor._heard.append(GpuEvent(UUIDS[1], 119))  # brought by a look that was given up
    node.error = GpuDriverTroubleError("call 1 has not returned", TroubleKind.SILENT)
    node.look(LASTS_POLLS)
    assert node.statuses == [(NAMES[1], Status.UNHEALTHY)]


def test_a_fabric_that_is_being_brought_up_is_a_trouble_only_after_a_minute(node: Node) -> None:
    node.states[UUIDS[0]] = replace(node.states[UUIDS[0]], fabric_state=2)
    for _ in range(LASTS_POLLS - 1):
        node.look()
        assert (node.values(), node.troubles[-1]) == ([["in-progress"], []], ())
    node.look()
    assert [told.reason for told in node.troubles[-1]] == ["FabricNotReady"]


def test_gpus_that_wait_for_their_attestation_are_tainted_at_once_and_one_trouble_after_a_minute(node: Node) -> None:
    well = dict(node.states)
    node.states = {uuid: replace(state, cc_ready=False) for uuid, state in well.items()}
    for _ in range(LASTS_POLLS - 1):
        node.look()
        assert (node.values(), node.troubles[-1]) == ([["not-ready"]] * 2, ())
    node.look()
    (told,) = node.troubles[-1]
    assert (told.reason, told.text[:14]) == ("ConfidentialNotReady", "2 of 2 GPUs, G")
    assert "nvidia-smi conf-compute -srs 1" in told.advice
    node.states = {uuid: replace(state, cc_ready=True) for uuid, state in well.items()}
    node.look()
    assert (node.values(), node.troubles[-1], node.statuses) == ([[], []], (), [])


def test_a_poll_that_fails_says_of_which_kind_the_trouble_is(node: Node) -> None:
    node.error = GpuDriverTroubleError("nvmlInit says DRIVER_NOT_LOADED", TroubleKind.NOT_LOADED)
    node.look()
    assert [told.reason for told in node.troubles[-1]] == ["DriverNotLoaded"]
    node.error = TemporaryError("something else")
    node.look()
    assert [told.reason for told in node.troubles[-1]] == ["DriverReadingFailed"]
    node.error = None
    node.look()
    assert node.troubles[-1] == ()
