"""One look after the other over GPUs with vGPUs on a fake /sys; and sequences of layouts, claims and kills by chance,
beside a model that only knows who has what.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Machine
from dracaena.api.names import DeviceName, vgpu_layout_key
from dracaena.kubelet_plugin.adapters.sysfs.vgpu import SysfsVgpu
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import VgpuLayout, VgpuLayouts, read_vgpu_layouts
from dracaena.kubelet_plugin.discovery.vm.vgpus import existing_vgpus
from dracaena.kubelet_plugin.labels.follower import SETTLE_S, LabelFollower, LabelPorts, LabelReport, LabelState
from dracaena.kubelet_plugin.labels.vgpu_layouts import VgpuLayoutsOfNode
from support.clock import FakeClock
from support.killed_steps import StopError
from support.passthrough import NO_GPUS
from support.plugin import DRIVER
from support.seeds import sampled
from support.vgpu_layout_node import H200, T4, VgpuLayoutNode

LABEL = vgpu_layout_key(DRIVER)
UUID = "aa618089-8b16-4d01-a136-25a0f3c73123"
FILE: dict[str, Any] = {
    "version": "v1",
    "vgpu-configs": {
        "small": [
            {"devices": [0], "vgpu-devices": {"T4-2Q": 2}},
            {"devices": [1], "vgpu-devices": {"H200X-1-18C": 3}},
        ],
        "large": [
            {"devices": [0], "vgpu-devices": {"T4-1B": 1}},
            {"devices": [1], "vgpu-devices": {"H200X-141C": 1}},
        ],
        "first": [{"devices": [0], "vgpu-devices": {"T4-2Q": 3}}],
        "none": [{"devices": "all"}],
        "emptied": [{"devices": [0]}],
        "no-type": [{"devices": [0], "vgpu-devices": {"T4-9Q": 1}}],
    },
}
WANTED: dict[str, dict[str, dict[str, int]]] = {
    "small": {T4: {"T4-2Q": 2}, H200: {"H200X-1-18C": 3}},
    "large": {T4: {"T4-1B": 1}, H200: {"H200X-141C": 1}},
    "first": {T4: {"T4-2Q": 3}},
    "none": {T4: {}, H200: {}},
}


class Node:
    """Stands in for GpuUsers too. `claims`: name → the vGPU that it was given, and whether it is prepared."""

    def __init__(self, folder: Path) -> None:
        self.node = VgpuLayoutNode(folder, T4, H200)
        self.clock = FakeClock()
        self.name: str | None = ""
        self.withheld: set[str] | None = None
        self.published: set[str] = set()
        self.told: list[LabelReport | None] = []
        self.claims: dict[str, tuple[str, bool]] = {}
        self.plant: Callable[[], None] = lambda: None
        self.start()

    def start(self, step: Callable[[str], None] = lambda _what: None, boot: str = "boot-1") -> None:
        self.node.start(step, boot)
        self.withheld = None
        ports = LabelPorts(
            key=LABEL,
            default="",
            labels=lambda: None if self.name is None else {LABEL: self.name},
            withhold=self._withhold,
            is_withheld=lambda gpu: gpu in self.published,
            read_soon=lambda: None,
            tell=self.told.append,
        )
        users: Any = self
        self.row = VgpuLayoutsOfNode(
            self.node.changes,
            self.node.notes,
            users,
            read_layouts=self._read_layouts,
            read_gpus=self.node.gpus,
        )
        self.follower = LabelFollower(self.row, ports, self.clock)
        self.plant()
        self.read()

    def _read_layouts(self) -> VgpuLayouts:
        return read_vgpu_layouts(FILE)

    def _withhold(self, gpus: Collection[str]) -> None:
        self.withheld = set(gpus)

    def holding(self, gpu: DeviceName) -> str | None:
        return self._claim_of(gpu, is_prepared=True)

    def allocated(self, gpu: DeviceName) -> str | None:
        return self._claim_of(gpu, is_prepared=False)

    def _claim_of(self, gpu: str, *, is_prepared: bool) -> str | None:
        there = self.node.there(gpu)
        found = [name for name, (vgpu, prepared) in self.claims.items() if prepared is is_prepared and vgpu in there]
        return f"claim {found[0]} has a vGPU of {gpu}" if found else None

    def machine(self) -> Machine:
        """What a reading says now."""
        found = existing_vgpus(SysfsVgpu(str(self.node.vgpus.root)).read(), self.node.told)
        return replace(NO_GPUS, passthrough=(), vgpus=found.vgpus, vgpu_parents=frozenset(map(str, found.parents)))

    def read(self) -> None:
        self.follower.take(self.machine())

    def publish(self) -> None:
        if self.withheld is not None:
            self.published = set(self.withheld)

    def look(self) -> LabelReport | None:
        self.follower.look()
        return self.told[-1]

    def state(self) -> tuple[LabelState, str]:
        report = self.look()
        assert report is not None
        return report.state, report.reason

    def settle(self) -> None:
        self.look()
        self.publish()
        self.look()
        self.clock.advance(SETTLE_S)

    def bring(self, name: str) -> None:
        self.name = name
        self.settle()
        self.look()
        self.read()
        assert self.state() == (LabelState.APPLIED, "")

    def counts(self) -> dict[str, dict[str, int]]:
        return {gpu: self.node.counts(gpu) for gpu in (T4, H200)}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_idle_gpus_are_withheld_changed_and_given_back_once_they_were_read(node: Node) -> None:
    node.name = "small"
    assert node.state() == (
        LabelState.PENDING,
        "; ".join(f"the devices of {gpu} are being withheld" for gpu in (f"GPU 0 ({T4})", f"GPU 1 ({H200})")),
    )
    assert node.withheld == {T4, H200}
    node.publish()
    assert "waiting for pods that already have one" in node.state()[1]
    assert node.counts() == {T4: {}, H200: {}}
    node.clock.advance(SETTLE_S)
    assert "is done; published once the driver has been read again" in node.state()[1]
    assert node.counts() == WANTED["small"]
    assert node.node.notes.changing() == {T4, H200}
    node.read()
    assert node.state() == (LabelState.APPLIED, "")
    assert (node.withheld, node.node.is_at_rest()) == (set(), True)


def test_a_type_of_several_words_is_read_as_the_file_calls_it(node: Node) -> None:
    """Or the GPU would be given back only after two readings."""
    called = node.node.vgpus.bus.device(T4) / "mdev_supported_types/nvidia-222/name"
    called.write_text("NVIDIA RTX 6000 T4-1B\n")
    node.node.vgpus.create(T4, 222, UUID)
    node.read()
    gpus = node.row.things(node.machine())
    assert gpus is not None
    assert node.row.is_read(gpus[T4], VgpuLayout("mine", {"T4-1B": 1}))


def test_another_layout_waits_for_claims_and_open_vgpus_of_each_gpu_alone(node: Node) -> None:
    node.bring("small")
    first = next(iter(node.node.there(T4)))
    node.claims["default/vm"] = (first, True)
    node.name = "large"
    node.settle()
    assert node.state()[1].startswith("claim default/vm has a vGPU of 0000:21:00.0; GPU 1")
    assert node.counts() == {T4: {"T4-2Q": 2}, H200: {"H200X-141C": 1}}
    node.read()
    del node.claims["default/vm"]
    node.node.open(first)
    assert node.state() == (LabelState.PENDING, f"vGPU {first} of GPU 0 ({T4}) is open in qemu-kvm (PID 4711)")
    assert node.withheld == {T4}
    node.node.close(first)
    node.look()
    node.read()
    assert node.state() == (LabelState.APPLIED, "")
    assert node.counts() == WANTED["large"]


def test_a_pod_that_was_given_one_before_is_waited_for(node: Node) -> None:
    node.bring("first")
    node.claims["default/vm"] = (next(iter(node.node.there(T4))), False)
    node.name = "none"
    node.settle()
    assert node.state() == (LabelState.PENDING, f"claim default/vm has a vGPU of {T4}")


def test_what_is_as_it_should_be_is_taken_over_whoever_made_it(node: Node) -> None:
    node.node.vgpus.create(T4, 222, UUID)
    node.node.vgpus.set_type(f"{H200[:-4]}04.2", 1428)
    node.read()
    node.name = "large"
    assert node.state() == (LabelState.APPLIED, "")
    assert node.withheld == set()


def test_what_others_made_is_told_and_the_other_gpus_go_on(node: Node) -> None:
    node.node.vgpus.create(T4, 222, UUID)
    node.name = "small"
    node.settle()
    state, reason = node.state()
    assert state is LabelState.FAILED
    assert reason.startswith(f"GPU 0 ({T4}) has vGPUs that no layout made ({UUID})")
    assert node.withheld == {H200}, "nobody could change it, so it is not withheld"
    assert node.counts() == {T4: {"T4-1B": 1}, H200: {"H200X-1-18C": 3}}


def test_an_index_means_the_gpu_that_had_it_first_and_no_other_that_moves_up(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.bring("large")
    for each in list(node.node.there(T4)):
        node.node.vgpus.write(f"bus/mdev/devices/{each}/remove", "1")
    for link in (node.node.vgpus.bus.device(T4), node.node.vgpus.root / "class/mdev_bus" / T4):
        link.unlink()  # it fell off the bus
    assert [(gpu.index, gpu.address) for gpu in node.node.gpus()] == [(0, H200)]
    node.read()
    node.name = "emptied"
    node.settle()
    assert node.state()[0] is LabelState.FAILED
    assert node.node.counts(H200) == WANTED["large"][H200]


def test_a_layout_that_cannot_be_had_changes_nothing(node: Node) -> None:
    node.bring("small")
    node.name = "no-type"
    words = f"layout no-type: entry 1: GPU 0 ({T4}) has no vGPU type T4-9Q, it has T4-1B, T4-2Q"
    assert node.state() == (LabelState.FAILED, words)
    node.name = "nowhere"
    assert node.state() == (
        LabelState.FAILED, "there is no layout 'nowhere'; the file has emptied, first, large, no-type, none, small"
    )  # fmt: skip
    assert (node.withheld, node.counts()) == (set(), WANTED["small"])


def test_a_gpu_whose_layout_the_kernel_refuses_is_told_and_tried_again(node: Node) -> None:
    node.bring("small")
    stranger = next(iter(node.node.there(T4)))
    node.node.vgpus.open_by.add(stranger)
    node.name = "large"
    node.settle()
    state, reason = node.state()
    assert (state, "the kernel refuses 1 in /sys/bus/mdev/devices" in reason) == (LabelState.FAILED, True)
    node.node.vgpus.close(stranger)
    node.look()
    node.read()
    assert node.state() == (LabelState.APPLIED, "")


def begun_and_killed(node: Node, before: str, number: int = 0) -> None:
    """Have the plugin killed before a write of the first GPU's change, and started again."""
    left = [number]

    def die(what: str) -> None:
        if what.startswith(before):
            left[0] -= 1
            if left[0] < 0:
                raise StopError

    node.start(die)
    node.settle()
    with suppress(StopError):
        node.look()
    node.start()
    assert node.node.notes.changing() == {T4}


@pytest.mark.parametrize("first", ["small", "none"])
@pytest.mark.parametrize("refuses", [True, False])
def test_a_layout_that_was_begun_and_never_written_goes_with_its_label(node: Node, first: str, refuses: bool) -> None:
    node.bring(first)
    node.name = "large"
    begun_and_killed(node, "before writing bus/")
    if refuses:
        node.node.vgpus.write = refuse  # type: ignore[method-assign]
    node.name = ""
    assert node.look() is None
    assert (node.counts(), node.withheld, node.node.is_at_rest()) == (WANTED[first], set(), True)


def refuse(path: str, text: str) -> None:
    del text
    raise OSError(errno.EINVAL, "Invalid argument", path)


def test_a_layout_that_the_kernel_refuses_after_a_kill_is_no_longer_begun(node: Node) -> None:
    node.bring("small")
    node.name = "large"
    begun_and_killed(node, "before writing bus/")
    node.node.vgpus.write = refuse  # type: ignore[method-assign]
    assert node.state()[0] is LabelState.FAILED
    assert (node.counts(), node.node.is_at_rest()) == (WANTED["small"], True)


def test_a_layout_that_was_begun_stays_while_its_label_names_it_or_cannot_be_read(node: Node) -> None:
    node.bring("small")
    node.name = "large"
    begun_and_killed(node, "before writing bus/")
    node.node.user = "claim default/vm has a vGPU of it"
    for name in ("large", "nowhere"):
        node.name = name
        node.look()
        assert node.node.notes.changing() == {T4}
        assert node.withheld == ({T4, H200} if name == "large" else {T4})


def test_a_layout_of_which_something_was_written_is_brought_to_its_end_without_its_label(node: Node) -> None:
    node.bring("small")
    node.name = "large"
    begun_and_killed(node, "before writing bus/", 1)
    node.name = ""
    assert node.state()[0] is LabelState.PENDING
    assert node.counts() == {**WANTED["small"], T4: {"T4-1B": 1}}


def test_after_a_reboot_the_layout_is_brought_about_again(node: Node) -> None:
    node.bring("small")
    node.node.vgpus.boot()
    node.start(boot="boot-2")
    assert node.counts() == {T4: {}, H200: {}}
    node.bring("small")
    assert node.counts() == WANTED["small"]


def test_a_label_that_is_taken_away_leaves_all_as_it_is(node: Node) -> None:
    node.bring("small")
    node.name = ""
    assert node.look() is None
    assert (node.counts(), node.withheld) == (WANTED["small"], set())
    node.name = None
    told = len(node.told)
    node.follower.look()
    assert len(node.told) == told, "what is to be is not known"


def test_nothing_is_looked_at_before_the_first_reading(node: Node) -> None:
    node.follower._machine = None
    node.name = "small"
    node.follower.look()
    assert node.told == []


class Chance:
    """One sequence. The model is `node.claims` and who has what open; `in_use()` must never be removed."""

    def __init__(self, folder: Path, seed: int, plant: Callable[[Node], None] = lambda _node: None) -> None:
        self.rng = random.Random(seed)
        self.node = Node(folder)
        self.node.plant = lambda: plant(self.node)
        self.boots = 1
        self.removed_in_use: list[str] = []
        self.names = 0
        write = self.node.node.vgpus.write

        def watched(path: str, text: str) -> None:
            identity = path.split("/")[-3 if path.endswith("current_vgpu_type") else -2]
            if text.strip() in ("0", "1") and "create" not in path and identity in self.in_use():
                self.removed_in_use.append(identity)
            write(path, text)

        self.node.node.vgpus.write = watched  # type: ignore[method-assign]
        self.node.start()

    def in_use(self) -> set[str]:
        return {vgpu for vgpu, prepared in self.node.claims.values() if prepared} | set(self.node.node.held)

    def run(self, steps: int) -> None:
        weights = {
            self.choose: 2, self.allocate: 3, self.prepare: 3, self.open: 2, self.end: 2, self.look: 9, self.kill: 1,
            self.reboot: 1,
        }  # fmt: skip
        actions = self.rng.choices([*weights], [*weights.values()], k=steps)
        for action in actions:
            action()

    def choose(self) -> None:
        self.node.name = self.rng.choice((*WANTED, *WANTED, "no-type", "", "nowhere"))

    def allocate(self) -> None:
        """What the controller does, by what the API server shows."""
        free = [
            vgpu
            for gpu in (T4, H200)
            if gpu not in self.node.published
            for vgpu in self.node.node.there(gpu)
            if vgpu not in {given for given, _ in self.node.claims.values()}
        ]
        if free:
            self.names += 1
            self.node.claims[f"c{self.names}"] = (self.rng.choice(free), False)

    def prepare(self) -> None:
        """What kubelet asks for. The last guard refuses what is being changed; a vGPU that is gone cannot be had."""
        for name, (vgpu, prepared) in self.node.claims.items():
            gpu = next((gpu for gpu in (T4, H200) if vgpu in self.node.node.there(gpu)), None)
            if not prepared and gpu is not None and gpu not in self.node.node.notes.changing():
                self.node.claims[name] = (vgpu, True)
                return

    def open(self) -> None:
        ready = [vgpu for vgpu, prepared in self.node.claims.values() if prepared and vgpu not in self.node.node.held]
        if ready:
            self.node.node.open(self.rng.choice(ready))

    def end(self) -> None:
        if self.node.claims:
            vgpu, _ = self.node.claims.pop(self.rng.choice(sorted(self.node.claims)))
            if self.rng.random() < 0.7:  # else QEMU is still about to end
                self.node.node.close(vgpu)
        elif self.node.node.held:
            self.node.node.close(self.rng.choice(sorted(self.node.node.held)))

    def look(self) -> None:
        with suppress(DracaenaError):
            self.node.follower.look()
        if self.rng.random() < 0.8:
            self.node.publish()
        self.node.clock.advance(self.rng.choice((1.0, SETTLE_S)))
        if self.rng.random() < 0.5:
            self.node.read()

    def kill(self) -> None:
        left = [self.rng.randrange(30)]

        def die(_what: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise StopError

        self.node.start(die, f"boot-{self.boots}")
        with suppress(StopError, DracaenaError):
            for _ in range(4):
                self.look()
        self.node.start(boot=f"boot-{self.boots}")
        for gpu in (T4, H200):
            assert set(self.node.node.there(gpu)) <= self.node.node.ours(gpu), "a vGPU that is not noted"

    def reboot(self) -> None:
        if self.rng.random() < 0.2:
            self.boots += 1
            self.node.claims.clear()
            self.node.node.held.clear()
            self.node.node.vgpus.boot()
            self.node.start(boot=f"boot-{self.boots}")

    def come_to_an_end(self) -> str:
        """Let everything end, choose a layout, and let time pass; return which."""
        self.node.claims.clear()
        for vgpu in list(self.node.node.held):
            self.node.node.close(vgpu)
        name = self.rng.choice(sorted(WANTED))
        self.node.name = name
        for _ in range(6):
            self.node.look()
            self.node.publish()
            self.node.clock.advance(SETTLE_S)
            self.node.read()
        return name


@pytest.mark.parametrize("seed", sampled(range(400), 3, 60))
def test_no_vgpu_in_use_is_removed_and_the_layout_is_there_in_the_end(tmp_path: Path, seed: int) -> None:
    chance = Chance(tmp_path, seed)
    chance.run(100)
    assert chance.removed_in_use == []
    name = chance.come_to_an_end()
    node = chance.node
    assert node.told[-1] == LabelReport(name, LabelState.APPLIED, "")
    assert {gpu: node.counts()[gpu] for gpu in WANTED[name]} == WANTED[name]
    assert (node.withheld, node.node.is_at_rest()) == (set(), True)
    for gpu in (T4, H200):
        assert set(node.node.there(gpu)) == node.node.ours(gpu)


@pytest.mark.search
def test_the_search_finds_a_plugin_that_does_not_ask_who_has_a_vgpu(tmp_path: Path) -> None:
    """Planted: claims are not asked for, nor who has one open."""

    def careless(node: Node) -> None:
        node.row._users = nobody()
        node.node.look = lambda _identity: []

    def removes_one_in_use(seed: int) -> bool:
        chance = Chance(tmp_path / str(seed), seed, careless)
        chance.run(100)
        return bool(chance.removed_in_use)

    assert any(map(removes_one_in_use, range(12)))


def nobody() -> Any:
    class Nobody:
        def holding(self, _gpu: DeviceName) -> None:
            return None

        allocated = holding

    return Nobody()
