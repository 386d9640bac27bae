"""One pass after the other over a node's GPUs: what is withheld, what is waited for, what is told."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Machine
from dracaena.api.mig import EmptyGpuInstance, MigDevice
from dracaena.api.names import DeviceName, mig_layout_key
from dracaena.kubelet_plugin.discovery.mig.layouts import Layouts, read_layouts
from dracaena.kubelet_plugin.labels.follower import SETTLE_S, LabelFollower, LabelPorts, LabelReport, LabelState
from dracaena.kubelet_plugin.labels.mig_layouts import MigLayouts
from support.clock import FakeClock
from support.fake_mig import IN_USE
from support.layout_node import LayoutNode, layout, layout_node
from support.plugin import DRIVER

LABEL = mig_layout_key(DRIVER)
FILE = {
    "version": "v1",
    "mig-configs": {
        "all-1g": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}],
        "one-3g": [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.40gb": 1}}],
        "whole": [{"devices": "all", "mig-enabled": False}],
        "filtered": [
            {"devices": "all", "device-filter": "0x233010DE", "mig-enabled": True, "mig-devices": {"7g.80gb": 1}}
        ],
        "too-much": [{"devices": "all", "mig-enabled": True, "mig-devices": {"4g.40gb": 2}}],
    },
}


@dataclass
class Users:
    """Stands in for GpuUsers."""

    has_prepared: str | None = None
    has_allocated: str | None = None

    def holding(self, _gpu: DeviceName) -> str | None:
        return self.has_prepared

    def allocated(self, _gpu: DeviceName) -> str | None:
        return self.has_allocated


@dataclass
class Watched:
    """Layouts over a fake driver. Nothing is read, and nothing published, but when a test says so."""

    node: LayoutNode
    name: str | None = ""
    file: object = field(default_factory=lambda: FILE)
    users: Users = field(default_factory=Users)
    clock: FakeClock = field(default_factory=FakeClock)
    withheld: set[str] = field(default_factory=set)
    said: list[set[str]] = field(default_factory=list)
    """What was withheld after each look that said so."""
    published: set[str] = field(default_factory=set)
    """GPUs whose taint the API server shows."""
    asked_to_read: int = 0
    told: list[LabelReport | None] = field(default_factory=list)
    first: dict[int, str] = field(default_factory=dict)
    """Which UUID each index had first."""
    untold: bool = False
    """Whether readings lack the profiles of GPUs that are not in MIG mode."""
    layouts: LabelFollower[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        ports = LabelPorts(
            key=LABEL,
            default="",
            labels=lambda: None if self.name is None else {LABEL: self.name},
            withhold=self._withhold,
            is_withheld=lambda uuid: uuid in self.published,
            read_soon=self._read_soon,
            tell=self.told.append,
        )
        users: Any = self.users
        row = MigLayouts(
            self.node.changes,
            self.node.notes,
            users,
            read_layouts=self._read_layouts,
            first_indices=lambda: self.first,
        )
        self.layouts = LabelFollower(row, ports, self.clock)
        self.read()

    def _read_layouts(self) -> Layouts:
        return read_layouts(self.file)

    def _withhold(self, gpus: Collection[str]) -> None:
        self.withheld = set(gpus)
        self.said.append(self.withheld)

    def _read_soon(self) -> None:
        self.asked_to_read += 1

    def machine(self) -> Machine:
        hardware = self.node.hardware
        migs = tuple(
            MigDevice(gpu.uuid, uuid, number, ci, each.profile.name, each.placement.start, each.placement.size)
            for gpu, there in zip(hardware.machine.gpus, hardware.gpus, strict=True)
            for number, each in sorted(there.instances.items())
            for ci, uuid in each.compute.items()
        )
        empty = tuple(
            EmptyGpuInstance(gpu.uuid, number, each.profile.name, each.placement.start, each.placement.size)
            for gpu, there in zip(hardware.machine.gpus, hardware.gpus, strict=True)
            for number, each in sorted(there.instances.items())
            if not each.compute
        )
        modes = (there.mode for there in hardware.gpus)
        gpus = tuple(
            replace(gpu, mig_enabled=mode, mig_profiles=() if self.untold and not mode else gpu.mig_profiles)
            for gpu, mode in zip(hardware.machine.gpus, modes, strict=True)
        )
        return replace(hardware.machine, gpus=gpus, mig_devices=migs, empty_gpu_instances=empty)

    def read(self) -> None:
        self.layouts.take(self.machine())

    def look(self) -> LabelReport | None:
        self.layouts.look()
        return self.told[-1]

    def publish(self) -> None:
        self.published = set(self.withheld)

    def state(self) -> tuple[LabelState, str]:
        report = self.look()
        assert report is not None
        return report.state, report.reason

    def settle(self) -> None:
        """Let everything pass that a change waits for."""
        self.look()
        self.publish()
        self.look()
        self.clock.advance(SETTLE_S)

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.node.hardware.machine.gpus]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with layout_node(tmp_path) as node:
        yield Watched(node)


def test_without_a_layout_nothing_is_withheld_changed_or_told(watched: Watched) -> None:
    assert watched.look() is None
    assert watched.withheld == set()
    watched.name = None  # the Node was not seen yet
    watched.layouts.look()
    assert len(watched.told) == 1


def test_a_gpu_is_changed_only_when_its_taint_was_seen_for_a_while(watched: Watched) -> None:
    watched.name = "one-3g"
    assert watched.state() == (LabelState.PENDING, "the devices of GPU 0 are being withheld")
    assert watched.withheld == {watched.uuids[0]}
    watched.clock.advance(10 * SETTLE_S)
    assert "being withheld" in watched.state()[1], "the server does not show it yet"
    watched.publish()
    assert "waiting for pods that already have one" in watched.state()[1]
    watched.clock.advance(SETTLE_S - 1)
    watched.look()
    assert watched.node.hardware.layout(0) == []
    watched.clock.advance(1)
    assert "published once the driver has been read again" in watched.state()[1]
    assert watched.node.counts() == {"3g.40gb": 1}
    assert watched.withheld == {watched.uuids[0]}, "what is published is of before"
    watched.look()
    assert watched.asked_to_read == 2
    watched.read()
    assert watched.state() == (LabelState.APPLIED, "")
    assert watched.withheld == set()


def test_a_taint_that_was_lost_meanwhile_is_waited_for_anew(watched: Watched) -> None:
    watched.name = "one-3g"
    watched.settle()
    watched.published = set()
    assert "being withheld" in watched.state()[1]
    watched.publish()
    assert "waiting for" in watched.state()[1]
    assert watched.node.hardware.layout(0) == []


def test_claims_that_have_it_and_claims_that_were_given_it_are_waited_for(watched: Watched) -> None:
    watched.name = "one-3g"
    watched.users.has_allocated = "claim a/b has it"
    watched.settle()
    assert watched.state() == (LabelState.PENDING, "claim a/b has it")
    watched.users.has_allocated, watched.users.has_prepared = None, "claim c/d has it"
    assert watched.state() == (LabelState.PENDING, "claim c/d has it")
    assert watched.node.hardware.layout(0) == []
    watched.users.has_prepared = None
    watched.look()
    assert watched.node.counts() == {"3g.40gb": 1}


def test_instances_that_were_made_on_demand_for_claims_that_live_go_with_these(watched: Watched) -> None:
    watched.node.hardware.put(0, "1g.10gb", 6)
    watched.read()
    watched.users.has_prepared = "claim c/d has it"
    watched.name = "one-3g"
    assert watched.state()[0] is LabelState.PENDING
    assert watched.withheld == {watched.uuids[0]}
    watched.settle()
    assert watched.state() == (LabelState.PENDING, "claim c/d has it")
    watched.users.has_prepared = None
    watched.node.hardware.gpus[0].instances.clear()
    watched.read()
    watched.look()
    assert watched.node.counts() == {"3g.40gb": 1}


def test_of_several_gpus_each_is_changed_as_its_time_comes_and_the_worst_is_told(watched: Watched) -> None:
    watched.node.hardware.put(1, "1g.10gb", 6)
    watched.read()
    watched.name = "all-1g"
    state, reason = watched.state()
    assert state is LabelState.FAILED
    assert "GPU 1 has MIG instances that no layout made (1g.10gb at 6)" in reason
    assert watched.withheld == {watched.uuids[0]}, "what stays as it is can be used"
    watched.settle()
    watched.look()
    watched.read()
    assert watched.state()[0] is LabelState.FAILED
    assert watched.node.counts(0) == {"1g.10gb": 7}
    assert watched.node.hardware.layout(1) == [("1g.10gb", 6, 1)]
    watched.node.hardware.gpus[1].instances.clear()
    watched.read()
    watched.settle()
    watched.look()
    watched.read()
    assert watched.state() == (LabelState.APPLIED, "")


def test_a_gpu_that_moved_up_to_the_index_of_a_lost_one_keeps_its_own_layout(watched: Watched) -> None:
    watched.first = {0: "GPU-lost", 1: watched.uuids[0], 2: watched.uuids[1]}
    watched.file = {
        "version": "v1",
        "mig-configs": {
            "mixed": [
                {"devices": [0], "mig-enabled": True, "mig-devices": {"7g.80gb": 1}},
                {"devices": [1], "mig-enabled": True, "mig-devices": {"3g.40gb": 1}},
            ]
        },
    }
    watched.name = "mixed"
    watched.settle()
    watched.look()
    watched.read()
    assert watched.state() == (LabelState.APPLIED, "")
    assert (watched.node.counts(0), watched.node.counts(1)) == ({"3g.40gb": 1}, {})


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("too-much", FILE, "no room for 2 x 4g.40gb (4g.40gb at most 1)"),
        ("none", FILE, "there is no layout 'none'"),
        ("all-1g", {"version": "v7"}, "version: 'v7'"),
        ("filtered", FILE, "names no GPU of this node"),
    ],
)
def test_what_cannot_be_had_is_told_and_nothing_is_withheld(
    watched: Watched, name: str, file: object, words: str
) -> None:
    watched.name, watched.file = name, file
    state, reason = watched.state()
    assert state is LabelState.FAILED
    assert words in reason
    assert watched.withheld == set()


def test_gpus_are_filtered_by_their_pci_ids(watched: Watched) -> None:
    watched.node.hardware.gpus[1].device_id = 0x233010DE
    watched.name = "filtered"
    watched.look()
    assert watched.withheld == {watched.uuids[1]}


def test_a_change_that_was_begun_is_finished_whatever_became_of_label_and_file(watched: Watched) -> None:
    watched.node.fake.once["nvmlGpuInstanceCreateComputeInstance"] = IN_USE
    watched.node.fake.once["nvmlGpuInstanceDestroy"] = IN_USE
    watched.name = "one-3g"
    watched.settle()
    state, reason = watched.state()
    assert (state, "nvmlGpuInstanceCreateComputeInstance says IN_USE" in reason) == (LabelState.PENDING, True)
    assert not watched.node.is_at_rest()
    watched.node.fake.once["nvmlGpuInstanceDestroy"] = IN_USE
    watched.name, watched.file = "gone", {"version": "v1", "mig-configs": {}}
    watched.look()
    assert watched.withheld == {watched.uuids[0]}
    watched.name = ""
    watched.look()
    watched.read()
    assert watched.look() is None
    assert (watched.node.counts(), watched.node.is_at_rest()) == ({"3g.40gb": 1}, True)
    assert watched.withheld == set()


def test_a_gpu_whose_mode_cannot_be_changed_is_free_again_when_its_label_is_taken_away(watched: Watched) -> None:
    watched.node.hardware.gpus[0].watched = True
    watched.name = "one-3g"
    watched.settle()
    state, reason = watched.state()
    assert (state, "nvmlDeviceSetMigMode says IN_USE" in reason) == (LabelState.PENDING, True)
    assert watched.withheld == {watched.uuids[0]}
    watched.look()
    watched.name = ""
    assert watched.look() is None
    assert (watched.withheld, watched.node.is_at_rest()) == (set(), True)


def test_nothing_is_said_of_what_is_withheld_before_the_label_is_known(watched: Watched) -> None:
    """Until it is said nothing is published, and slices of an earlier run stay as they are."""
    watched.node.notes.begin(watched.uuids[1], layout(g1=7), lambda: None)
    watched.name = None
    watched.layouts.start()
    try:
        watched.layouts.look()
        assert watched.said == []
    finally:
        watched.layouts.stop()
    watched.name = "one-3g"
    watched.layouts.look()
    (first,) = watched.said
    assert first == set(watched.uuids), "what an earlier run left half done, and what waits for its layout"


def test_a_reading_of_before_the_change_frees_nothing_even_if_the_label_was_changed_back(watched: Watched) -> None:
    watched.name = "one-3g"
    watched.settle()
    watched.look()
    assert watched.node.counts() == {"3g.40gb": 1}
    watched.name = "whole"  # as the reading still shows it
    assert watched.state()[0] is LabelState.PENDING
    assert watched.withheld == {watched.uuids[0]}
    watched.layouts.read_again()  # begun before the change
    assert watched.state()[0] is LabelState.PENDING
    watched.read()
    watched.settle()
    watched.look()
    assert watched.node.hardware.layout(0) == []
    watched.read()
    assert watched.state() == (LabelState.APPLIED, "")


def test_nothing_of_a_changed_gpu_is_prepared_before_it_was_read_though_its_label_is_gone(watched: Watched) -> None:
    watched.name = "one-3g"
    watched.settle()
    watched.look()
    assert watched.node.counts() == {"3g.40gb": 1}
    watched.name = ""
    watched.look()
    assert (watched.withheld, watched.node.is_at_rest()) == ({watched.uuids[0]}, False)
    watched.layouts.read_again()
    watched.look()
    assert (watched.withheld, watched.node.is_at_rest()) == ({watched.uuids[0]}, False)
    watched.read()
    watched.look()
    assert (watched.withheld, watched.node.is_at_rest()) == (set(), True)


def test_a_process_that_starts_before_a_changed_gpu_was_read_gives_it_back_too(watched: Watched) -> None:
    watched.name = "one-3g"
    watched.settle()
    watched.look()
    watched.start()  # reads
    assert not watched.node.is_at_rest()
    watched.look()
    watched.read()
    assert watched.state() == (LabelState.APPLIED, "")
    assert watched.node.is_at_rest()


def test_a_gpu_that_an_admin_changed_right_after_us_does_not_wait_for_ever(watched: Watched) -> None:
    watched.name = "one-3g"
    watched.settle()
    watched.look()
    watched.node.hardware.put(0, "1g.10gb", 6)
    watched.read()
    assert watched.state()[0] is LabelState.PENDING
    watched.read()
    state, reason = watched.state()
    assert (state, "no layout made (1g.10gb at 6)" in reason) == (LabelState.FAILED, True)


def test_a_layout_that_is_impossible_in_mig_mode_is_tried_once_and_withholds_nothing_then(watched: Watched) -> None:
    watched.node.fake.places_need_mode = True
    watched.untold = True
    watched.read()
    modes: list[str] = []
    watched.node.fake.before_change = modes.append
    watched.name = "too-much"
    watched.settle()
    state, reason = watched.state()
    assert (state, "no room for 2 x 4g.40gb" in reason) == (LabelState.FAILED, True)
    assert modes == ["nvmlDeviceSetMigMode"] * 4, "each of two GPUs on and off again"
    for _ in range(3):
        watched.settle()
        assert watched.state() == (state, reason)
        assert watched.withheld == set()
    assert len(modes) == 4
    watched.name = "whole"
    assert watched.state() == (LabelState.APPLIED, "")
    watched.name = "too-much"
    watched.settle()
    watched.look()
    assert len(modes) == 8, "the label was set anew"


def test_an_impossible_layout_is_tried_again_when_the_gpu_was_read_otherwise(watched: Watched) -> None:
    watched.node.fake.places_need_mode = True
    watched.untold = True
    watched.read()
    watched.name = "too-much"
    watched.settle()
    assert watched.state()[0] is LabelState.FAILED
    watched.untold, watched.node.fake.places_need_mode = False, False
    watched.read()
    assert "no room for 2 x 4g.40gb (4g.40gb at most 1)" in watched.state()[1], "told without a try"


def test_a_gpu_instance_without_a_compute_instance_blocks_without_withholding_until_it_is_gone(
    watched: Watched,
) -> None:
    watched.node.hardware.put(0, "1g.10gb", 6, compute=False)
    watched.read()
    watched.name = "one-3g"
    watched.settle()
    state, reason = watched.state()
    assert (state, "no layout made (1g.10gb at 6)" in reason) == (LabelState.FAILED, True)
    for _ in range(3):
        watched.settle()
        assert watched.state() == (state, reason)
        assert watched.withheld == set()
    watched.node.hardware.gpus[0].instances.clear()
    assert watched.state() == (state, reason), "nothing says that it is gone"
    watched.read()
    assert watched.state()[0] is LabelState.PENDING
    watched.settle()
    watched.look()
    assert watched.node.counts() == {"3g.40gb": 1}


def test_a_file_that_cannot_be_read_is_told(watched: Watched) -> None:
    watched.name = "all-1g"
    watched.file = None
    with pytest.raises(BadInputError):
        read_layouts(None)
    assert watched.state()[0] is LabelState.FAILED
