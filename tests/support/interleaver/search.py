"""Looks for schedules that break a rule: draws them, takes them again by their steps' names, shrinks them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from support.interleaver.checks import check_collisions, check_rest, check_step
from support.interleaver.process import GATE, Process, SteppedController, stepping
from support.interleaver.scenario import Scenario, any_scenario
from support.interleaver.server import owner_uid
from support.interleaver.world import WORKERS, ViolationError, World

STEPS: Final = 140
"""Of one schedule, before it comes to rest."""

ROUNDS: Final = 60
"""Of coming to rest: each lets 2.5 or 12 s pass, so all waits of the controller end several times."""

MOODS: Final = (0.2, 1.0, 1.0, 5.0)
"""How much more or less often a kind of step is taken in one schedule than in others. Schedules that favour some kinds
and nearly leave out others find more than those that are all alike (swarm testing)."""

KINDS: Final = ("users", "time", "views", "tries", "binds", "others", "late", "failures", "work", "life")

ControllerType = type[SteppedController]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A scenario and the names of the steps that are taken in it; those that cannot be taken are passed over."""

    scenario: Scenario
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """A schedule that breaks a rule."""

    seed: int
    schedule: Schedule
    why: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        lines = (f"seed {self.seed}: {self.why}", str(self.schedule.scenario), *self.story)
        return "\n".join(lines)


def draw(
    seed: int,
    controller_type: ControllerType = SteppedController,
    make: Callable[[random.Random], Scenario] = any_scenario,
) -> Broken | None:
    """Draw one schedule; return it when it breaks a rule."""
    rng = random.Random(seed)
    scenario = make(rng)
    factors = _Factors({kind: rng.choice(MOODS) for kind in KINDS})
    world = World(scenario, controller_type)
    taken: list[str] = []
    try:
        for _ in range(STEPS):
            found = world.steps()
            weights = [weight * factors[name] for weight, name in found]
            step = rng.choices(found, weights)[0][1]
            taken.append(step)
            world.take(step)
            check_step(world)
        come_to_rest(world)
    except ViolationError as error:
        return Broken(seed, Schedule(scenario, tuple(taken)), str(error), tuple(world.said))
    finally:
        end(world)
    return None


class _Factors(dict[str, float]):
    """Step → how much more or less often it is taken, worked out once for each."""

    def __init__(self, mood: Mapping[str, float]) -> None:
        self._mood = mood

    def __missing__(self, step: str) -> float:
        return self.setdefault(step, self._mood[kind_of(step)])


@cache
def kind_of(step: str) -> str:
    """Return of which kind a step is."""
    words = step.split(" ")
    if "sees" in words or "list" in words:
        return "views"
    if "gets" in words:
        return "failures"
    if words[0] == "kube-scheduler" and words[1] in ("tries", "goes"):
        return "tries" if words[1] == "tries" else "binds"
    if words[1] in (*WORKERS, GATE) or words[-1] in ("start", "groups"):
        return "work"
    if words[-1] == "pass":
        return "time"
    return {"users": "users", "a": "late", "controller-manager": "others"}.get(words[0], "life")


def repeat(schedule: Schedule, seed: int = 0, controller_type: ControllerType = SteppedController) -> Broken | None:
    """Take a schedule again."""
    world = World(schedule.scenario, controller_type)
    taken = []
    try:
        for step in schedule.steps:
            if world.take(step):
                taken.append(step)
                check_step(world)
        come_to_rest(world)
    except ViolationError as error:
        return Broken(seed, Schedule(schedule.scenario, tuple(taken)), str(error), tuple(world.said))
    finally:
        end(world)
    return None


def shrink(broken: Broken, controller_type: ControllerType = SteppedController, *, for_s: float = 20.0) -> Broken:
    """Leave out pods and steps as long as some rule is still broken in the same words but for names."""
    until = time.monotonic() + for_s

    def still(schedule: Schedule) -> Broken | None:
        found = repeat(schedule, broken.seed, controller_type)
        return found if found is not None and _kind(found.why) == _kind(broken.why) else None

    best = still(broken.schedule) or broken
    for name in sorted(broken.schedule.scenario.pods):
        smaller = still(replace(best.schedule, scenario=best.schedule.scenario.without_pod(name)))
        best = smaller or best
    size = max(len(best.schedule.steps) // 2, 1)
    while size and time.monotonic() < until:
        at, was = 0, len(best.schedule.steps)
        while at < len(best.schedule.steps) and time.monotonic() < until:
            steps = best.schedule.steps
            smaller = still(replace(best.schedule, steps=(*steps[:at], *steps[at + size :])))
            best, at = (smaller, at) if smaller is not None else (best, at + size)
        if size > 1 or len(best.schedule.steps) == was:
            size //= 2
    return best


def search(
    seeds: Sequence[int],
    controller_type: ControllerType = SteppedController,
    *,
    shrinks: bool = True,
    make: Callable[[random.Random], Scenario] = any_scenario,
) -> tuple[Broken | None, int]:
    """Draw schedules until one breaks a rule; return it shrunk, and how many were drawn. `make` draws scenarios."""
    with stepping():
        for count, seed in enumerate(seeds, 1):
            broken = draw(seed, controller_type, make)
            if broken is not None:
                return (shrink(broken, controller_type) if shrinks else broken), count
    return None, len(seeds)


def come_to_rest(world: World) -> None:
    """Let everything be seen and all time pass; raise ViolationError when that does not lead to rest."""
    world.said.append("-- from here on everything is seen, and time passes")
    world.unfit.clear()
    if world.scenario.changes:
        world.around.restore()
    for name in world.scenario.pods:
        _take(world, f"users ungate pod {name}")
    for number in range(ROUNDS):
        for name, process in world.processes.items():
            if process is not None and process.has_led and not process.leads:
                _take(world, f"{name} crashes")
            if world.processes[name] is None:
                _take(world, f"{name} is started again")
        _everything(world)
        _everything(world)
        if number >= 2 and _why_no_rest(world) is None:
            return
        _take(world, "12.0 s pass" if number % 3 == 2 else "2.5 s pass")
    why = _why_no_rest(world)
    if why is not None:
        raise ViolationError(f"at rest: {why}")


def _why_no_rest(world: World) -> str | None:
    try:
        check_rest(world)
    except ViolationError as error:
        return str(error)
    return None


def _everything(world: World) -> None:
    """Let everybody do what there is to do, in turn."""
    while world.late:
        _take(world, "a late write lands")
    for process in world.processes.values():
        if process is not None:
            if world.scenario.groups:
                _take(world, f"{process.name} reviews groups")
            _all_of(world, process)
            if process.leads:
                check_collisions(world, process)
    view = world.scheduler.view
    view.see_until(world.server.now_s)
    if world.scheduler.trying is not None:
        _finish(world, world.scheduler.trying[0])
    for key in list(world.scheduler.binding):
        _finish(world, key)
    for name in world.scenario.pods:
        if world.scenario.key(name) in world.server.pods and world.scheduler.can_try(world.scenario.key(name)):
            _take(world, f"kube-scheduler tries {name}")
            _finish(world, world.scenario.key(name))
    for name in world.scenario.pods:
        pod = world.server.pods.get(world.scenario.key(name))
        if pod is not None and pod.metadata.deletion_timestamp is not None:
            _take(world, f"kubelet removes pod {name}")
    controller = world.claim_controller
    _finish_controller(world)
    controller.view.see_until(world.server.now_s)
    generated = [claim.metadata.name for claim in world.server.claims.values() if owner_uid(claim) is not None]
    for name in generated:
        _take(world, f"controller-manager collects {name}")
    names = [name for name in world.scenario.claims if name not in world.scenario.generated]
    for step in (
        *(f"controller-manager looks at claim {name}" for name in (*names, *generated)),
        *(f"controller-manager looks at pod {name}" for name in world.scenario.pods),
    ):
        while _take(world, step):
            _finish_controller(world)
            controller.view.see_until(world.server.now_s)


def _all_of(world: World, process: Process) -> None:
    for _ in range(500):
        steps = [f"{process.name} goes on with {name}" for name in process.strands if name not in (*WORKERS, GATE)]
        steps += [f"{process.name} {name} goes on" for name in process.strands if name in (*WORKERS, GATE)]
        if world.may_begin(process):
            steps.append(f"{process.name} begins to lead")
        for watched in process.caches.values():
            if watched.is_behind and f"list {watched.resource}" not in process.strands:
                steps.append(f"{process.name} sees {watched.resource}")
        if not steps and process.controller.parts.work.is_open and process.has_ready_work():
            steps.append(f"{process.name} w0 takes work")
        if not steps and process.controller.parts.work.is_open and process.has_gates_to_remove():
            steps.append(f"{process.name} {GATE} takes work")
        if not steps:
            return
        for step in steps:
            _take(world, step)
    raise ViolationError(f"{process.name} never comes to an end")


def _finish(world: World, key: str) -> None:
    while key in world.scheduler.about_to:
        _take(world, f"kube-scheduler goes on with {key.partition('/')[2]}")


def _finish_controller(world: World) -> None:
    while world.claim_controller.under_way is not None:
        _take(world, "controller-manager goes on")


def _take(world: World, step: str) -> bool:
    taken = world.take(step)
    if taken:
        check_step(world)
    return taken


def end(world: World) -> None:
    """Let all strands end."""
    for process in world.processes.values():
        if process is not None:
            process.crash()


def _kind(why: str) -> str:
    """Return what is broken, without who it is."""
    return " ".join(word for word in why.split() if not any(letter.isdigit() or letter in "/()[]'" for letter in word))
