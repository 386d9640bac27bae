"""A decision that is stopped: what it answers, what stays for the next try, and that stopping changes nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import DeviceCapacity, ResourceClaim, ResourceSlice
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.effort import LOOK_EVERY_STEPS, Effort, OverdueError, Rounds, Work, never
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import Simulation
from support.allocation import DRIVER, blocks, claim, device_class, machine, node, pod, pool_slice, request
from support.hostile_pods import KINDS, hostile_pod


def stops_after(steps: int) -> Callable[[int], bool]:
    spent = 0

    def is_over(since: int) -> bool:
        nonlocal spent
        spent += since
        return spent >= steps

    return is_over


def with_memory(item: ResourceSlice, amount: str) -> ResourceSlice:
    for device in item.spec.devices:
        device.capacity["memory"] = DeviceCapacity(amount)
    return item


def cluster(nodes: int, memory_of_last: str = "1Gi") -> Inventory:
    inventory = Inventory(DRIVER)
    inventory.set_class(device_class())
    shape = blocks(3, 4, inside="PIX", outside="PHB")
    for number in range(nodes):
        name = f"n{number:03}"
        inventory.set_node(node(name))
        amount = memory_of_last if number == nodes - 1 else "1Gi"
        inventory.change_slice(None, with_memory(pool_slice(name, machine(f"m-{number}", shape)), amount))
    return inventory


def on_the_last_node() -> tuple[Pod, ResourceClaim]:
    """A pod that has to be asked of each node by the rules: a matchAttribute over what tells GPUs apart, and memory."""
    asked = claim("c", request(capacity={"requests": {"memory": "2Gi"}}))
    asked.spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/uuid"}]
    return pod("p", "c"), asked


def tries_until_served(inventory: Inventory, steps: int, most: int) -> int | None:
    allocator = Allocator()
    waiting, asked = on_the_last_node()
    for number in range(1, most + 1):
        decision = allocator.allocate(inventory, waiting, [asked], is_over=stops_after(steps))
        if isinstance(decision, Allocation):
            assert decision.node == max(inventory.nodes.names)
            return number
        assert isinstance(decision, Refused)
        assert decision.kind is RefusalKind.TOO_LONG
    return None


def test_nodes_that_are_asked_one_by_one_are_gone_through_in_several_tries() -> None:
    inventory = cluster(60, memory_of_last="4Gi")
    tries = tries_until_served(inventory, 5_000, 40)
    assert tries is not None
    assert tries > 2


def test_that_is_found_out_when_nothing_is_kept_of_a_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rounds, "of", lambda self, pod: lambda number: set())
    assert tries_until_served(cluster(60, memory_of_last="4Gi"), 5_000, 40) is None


def test_a_pod_that_fits_nowhere_is_never_said_to_fit_nowhere_by_tries_at_different_moments() -> None:
    allocator, inventory = Allocator(), cluster(40)
    waiting, asked = on_the_last_node()
    kinds = set()
    for _ in range(30):
        decision = allocator.allocate(inventory, waiting, [asked], is_over=stops_after(5_000))
        kinds.add(decision.kind if isinstance(decision, Refused) else type(decision))
    assert kinds == {RefusalKind.TOO_LONG}
    assert allocator.allocate(inventory, waiting, [asked]) == NoFit()


def test_the_best_of_the_nodes_that_were_asked_in_time_is_taken() -> None:
    inventory = cluster(60)
    whole = {"name": "all", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}}
    asked = claim("c", whole)  # mode All has no bound: every node has to be asked before one is chosen
    decision = Allocator().allocate(inventory, pod("p", "c"), [asked], is_over=stops_after(6_000))
    assert isinstance(decision, Allocation)
    assert len(decision.claims[0].results) == 7


@settings(derandomize=True)
@given(kind=st.sampled_from(sorted(KINDS)), steps=st.integers(1, 60_000), seed=st.integers(0, 3))
def test_a_stopped_decision_leaves_no_trace_in_later_answers(kind: str, steps: int, seed: int) -> None:
    """What was remembered half-way is right: an ordinary pod gets what a fresh allocator gives it."""
    inventory = cluster(4)
    allocator = Allocator()
    hostile, claims = hostile_pod(kind, seed)
    allocator.allocate(inventory, hostile, claims, is_over=stops_after(steps))
    for count in (1, 3, 7):
        asked = claim("c", request(count=count))
        decision = allocator.allocate(inventory, pod("p", "c"), [asked])
        assert decision == Allocator().allocate(inventory, pod("p", "c"), [asked])
    allocator.engine.check()


@settings(derandomize=True)
@given(seed=st.integers(0, 1_000))
def test_a_limit_that_is_not_reached_changes_no_answer(seed: int) -> None:
    rng = random.Random(seed)
    inventory = cluster(5)
    asked = claim("c", request(count=rng.randint(1, 8)), request("more", rng.randint(1, 3)))
    given_, free = Allocator(), Allocator()
    limited = given_.allocate(inventory, pod("p", "c"), [asked], is_over=stops_after(10**9))
    assert limited == free.allocate(inventory, pod("p", "c"), [asked])


def test_steps_are_reported_as_they_are_spent_and_once_over_every_charge_stops() -> None:
    effort, told = Effort(), list[int]()

    def is_over(steps: int) -> bool:
        told.append(steps)
        return len(told) > 1

    effort.begin(is_over)
    effort.charge(LOOK_EVERY_STEPS - 1, Work.SEARCH)
    assert told == []
    effort.charge(2, Work.SELECTOR, "true")
    assert told == [LOOK_EVERY_STEPS + 1]
    with pytest.raises(OverdueError):
        effort.charge(LOOK_EVERY_STEPS, Work.SEARCH)
    with pytest.raises(OverdueError):
        effort.charge(1, Work.SETS)
    assert sum(told) >= LOOK_EVERY_STEPS * 2
    assert effort.heaviest() == (Work.SEARCH, "")
    effort.begin(never)
    effort.charge(10**9, Work.SETS)
    assert effort.heaviest() == (Work.SETS, "")


def test_who_must_act_is_named_with_the_selector_and_the_object_that_it_stands_in() -> None:
    inventory = cluster(5)
    numbers = f"[{','.join(map(str, range(40)))}]"
    slow = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, a + b + c >= 0)))"
    in_class = device_class(selectors=[{"cel": {"expression": slow}}])
    inventory.set_class(in_class)
    decision = Allocator().allocate(inventory, pod("p", "c"), [claim("c")], is_over=stops_after(1_000))
    assert isinstance(decision, Refused)
    assert f"of DeviceClass {DRIVER}: its author can make it cheaper" in decision.text
    assert len(decision.text) < 1024
    assert decision.concerns_us


def test_a_simulation_stops_its_decisions_too_and_says_so() -> None:
    shape = blocks(3, 4, inside="PIX", outside="PHB")
    hostile, claims = hostile_pod("loops", 1)
    simulation = Simulation(
        DRIVER,
        nodes=[node("n")],
        slices=[pool_slice("n", machine("m", shape))],
        classes=[device_class()],
        claims=[*claims, claim("c")],
    )
    simulation.limit = lambda: stops_after(20_000)
    ordinary = pod("p", "c")
    outcomes = {outcome.pod: outcome for outcome in simulation.outcomes([hostile, ordinary])}
    assert "no decision within the time" in str(outcomes[hostile.key])
    assert outcomes[ordinary.key].node == "n"
