"""kill -9 before and after each thing that the supervisor does: started again, it comes to the same node.

The points are counted in a run without a crash, so a new step is in the matrix without anybody adding it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.mps.planning.plan import plan_gpu
from dracaena.mps.planning.state import ComputeMode, MpsStep, SeenGpu, StepKind, WantedGpu
from support.mps_node import MpsNode
from support.mps_oracle import Asked, differences
from support.mps_world import Killed

SAMPLE = 11
"""`make test` takes each eleventh point, others for each way to die; `make test-search` all."""


class Story:
    """Shares come and go on two GPUs, in three acts."""

    def __init__(self, root: Path, protocol: int) -> None:
        self.node = MpsNode(root, protocol)
        self.asked: dict[str, Asked] = {}
        self.names: dict[str, str] = {}

    def ask(self, number: int, share: str, percentage: int | None, memory: int | None) -> None:
        name = self.node.ask(number, share, percentage=percentage, memory=memory)
        self.names[share] = name
        self.asked[name] = Asked(self.node.world.gpus[number], percentage, memory)

    def drop(self, *shares: str) -> None:
        for share in shares:
            name = self.names.pop(share)
            self.node.withdraw(name)
            del self.asked[name]

    def acts(self) -> list[Callable[[], None]]:
        return [self.first, self.second, self.third]

    def first(self) -> None:
        self.ask(0, "a", 30, 2048)
        self.ask(0, "b", 20, 1024)
        self.ask(1, "c", None, None)

    def second(self) -> None:
        self.drop("b", "c")
        self.ask(0, "d", 60, 4096)

    def third(self) -> None:
        self.drop("a", "d")

    def ask_again(self) -> None:
        """As the plugin does after a reboot: kubelet prepares the claims anew."""
        for share, name in list(self.names.items()):
            asked = self.asked[name]
            self.ask(self.node.world.gpus.index(asked.gpu), share, asked.percentage, asked.memory)


def nothing(_story: Story) -> None:
    """The supervisor alone dies."""


def daemons_too(story: Story) -> None:
    story.node.world.kill_daemons()


def container(story: Story) -> None:
    """With the container all its processes end."""
    story.node.world.kill_all()


def driver_reload(story: Story) -> None:
    story.node.world.reload_driver()


def reboot(story: Story) -> None:
    story.node.world.reload_driver()
    story.node.boot = f"{story.node.boot}+"
    story.ask_again()


WAYS = (nothing, daemons_too, container, driver_reload, reboot)


def run(root: Path, protocol: int, point: int | None, way: Callable[[Story], None]) -> tuple[int, list[str]]:
    """Play the story, dying once at the point-th change; return the number of changes and what was wrong, if any."""
    story = Story(root, protocol)
    world, count = story.node.world, 0

    def effect(_what: str) -> None:
        nonlocal count
        count += 1
        if count - 1 == point:
            raise Killed

    world.effect = effect
    for act in story.acts():
        act()
        try:
            story.node.settle()
        except Killed:
            way(story)
            story.node.start()
            story.node.settle()
        wrong = differences(story.node, story.asked)
        if wrong:
            return count, [f"after {act.__name__}", *wrong]
    return count, story.node.left()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_kill_at_a_sample_of_points_leaves_nothing(
    tmp_path: Path, protocol: int, way: Callable[[Story], None]
) -> None:
    matrix(tmp_path, protocol, way, SAMPLE, WAYS.index(way) % SAMPLE)


@pytest.mark.search
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_kill_at_any_point_leaves_nothing(tmp_path: Path, protocol: int, way: Callable[[Story], None]) -> None:
    matrix(tmp_path, protocol, way, 1, 0)


def matrix(root: Path, protocol: int, way: Callable[[Story], None], stride: int, first: int) -> None:
    points, wrong = run(root / "whole", protocol, None, way)
    assert wrong == []
    assert points > 60, "the story has become too short to show anything"
    found = {}
    for point in range(first, points, stride):
        _, wrong = run(root / str(point), protocol, point, way)
        if wrong:
            found[point] = wrong
    assert found == {}


def test_a_mode_that_is_changed_before_it_is_journalled_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: without the journal a crash leaves a GPU exclusive for ever, and the matrix sees it."""
    monkeypatch.setattr("dracaena.mps.adapters.shared_folder.SharedFolder.write_journal", lambda *_: None)
    story = Story(tmp_path, 3)
    story.first()
    story.node.settle()
    story.drop("a", "b", "c")
    story.node.start()
    story.node.settle()
    assert story.node.world.modes[story.node.world.gpus[0]] is ComputeMode.EXCLUSIVE_PROCESS
    assert any("EXCLUSIVE_PROCESS" in each for each in differences(story.node, story.asked))


@pytest.mark.search
def test_a_mode_that_is_set_before_it_is_journalled_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault that only a crash between the two shows: the next look takes our own mode for the admin's."""

    def hasty(gpu: str, wanted: WantedGpu, seen: SeenGpu, protocol: int) -> tuple[MpsStep, ...]:
        steps = plan_gpu(gpu, wanted, seen, protocol)
        if [step.kind for step in steps[:2]] == [StepKind.JOURNAL_MODE, StepKind.SET_MODE]:
            return (steps[1], steps[0], *steps[2:])
        return steps

    monkeypatch.setattr("dracaena.mps.supervisor.plan_gpu", hasty)
    assert run(tmp_path / "whole", 3, None, nothing)[1] == [], "without a crash nothing is wrong"
    with pytest.raises(AssertionError, match="EXCLUSIVE_PROCESS"):
        matrix(tmp_path, 3, nothing, 1, 0)
