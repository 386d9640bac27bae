"""What is remembered of mixed nodes changes no answer, and saves asking nodes that did not change."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dracaena.api.decision import encode_decision
from dracaena.api.machine import Gpu
from dracaena.api.mig import MigDevice
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import (
    CounterConsumption,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    ResourceClaim,
    ResourceSlice,
)
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.legal.outcome import DoesNotFit
from dracaena.controller.allocation.result import Allocation, commit, decision_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeState
from dracaena.controller.allocation.walk import node_rules
from dracaena.controller.allocation.walk.judgements import Judgements
from dracaena.controller.simulation import make_inventory
from support.allocation import (
    DRIVER,
    OUR_TAINT,
    blocks,
    claim,
    device_class,
    give_back,
    machine,
    node,
    pod,
    pool_slice,
    request,
)
from support.mig_nodes import mig_classes, mig_slices
from support.mig_tables import A100, MigPart
from support.seeds import sampled
from support.shares import in_shares

STEPS = 14


B_TAG = machine("of-b", blocks(1, inside="X", outside="X")).gpus[0].uuid[4:12]
ON_NODE_B = f'device.attributes["{DRIVER}"].uuid.contains("{B_TAG}")'


def of_type(kind: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": f'device.attributes["{DRIVER}"].type == "{kind}"'}}]


CLASSES = (
    device_class(),
    device_class("mig", selectors=of_type("mig")),
    device_class("share", selectors=[{"cel": {"expression": "device.allowMultipleAllocations == true"}}]),
)


def pages(name: str, change: Callable[[Device], Device] = lambda device: device) -> Iterator[ResourceSlice]:
    """The slices of a node: two whole GPUs, two divided ones of three parts each, of which the first takes two of three
    slices, and one GPU that is given in shares."""
    made = machine(f"of-{name}", blocks(5, inside="NV4", outside="NV4"), nvlink_count=4, nvlink_generation=3)
    gpus = tuple(replace(gpu, mig_enabled=gpu.index in (2, 3)) for gpu in made.gpus)
    parts = tuple(_part(gpu, number) for gpu in gpus[2:4] for number in range(3))
    published = pool_slice(name, replace(made, gpus=gpus, mig_devices=parts))
    devices = [change(_as_offered(device)) for device in published.spec.devices]
    parents = sorted({one.counter_set for device in devices for one in device.consumes_counters} | {"spare"})
    sets = [msgspec.convert({"name": one, "counters": {"slices": {"value": "3"}}}, CounterSet) for one in parents]
    pool = msgspec.structs.replace(published.spec.pool, resource_slice_count=2)
    contents: tuple[dict[str, Any], ...] = ({"devices": devices}, {"devices": [], "shared_counters": sets})
    for number, content in enumerate(contents):
        metadata = msgspec.structs.replace(published.metadata, name=f"{name}-{number}")
        spec = msgspec.structs.replace(published.spec, pool=pool, **content)
        yield msgspec.structs.replace(published, metadata=metadata, spec=spec)


def _part(gpu: Gpu, number: int) -> MigDevice:
    uuid = f"MIG-{gpu.uuid.removeprefix('GPU-')[:-1]}{number}"
    return MigDevice(gpu.uuid, uuid, number + 1, 0, "1g.10gb", number, 1, memory_bytes=10 << 30)


def _as_offered(device: Device) -> Device:
    parent, ordinal = device.attributes.get("parentUUID"), device.attributes.get("ordinal")
    if parent is not None:
        units = "2" if device.name.endswith("-0") else "1"
        consumption = {"counterSet": str(parent.string).lower(), "counters": {"slices": {"value": units}}}
        return msgspec.structs.replace(device, consumes_counters=[msgspec.convert(consumption, CounterConsumption)])
    if ordinal is not None and ordinal.int_value == 4:
        memory = {"memory": DeviceCapacity(value="8")}
        return msgspec.structs.replace(device, capacity=memory, allow_multiple_allocations=True)
    return device


def some_inventory(names: str) -> Inventory:
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name, labels={"zone": "xy"[number % 2]}) for number, name in enumerate(names)],
        slices=[page for name in names for page in pages(name)],
        classes=CLASSES,
    )
    states = [inventory.state(name) for name in names]
    assert all(isinstance(state, NodeState) and inventory.is_mixed(state.kind) for state in states)
    return inventory


def constrained(name: str, kind: str, attribute: str, count: int) -> ResourceClaim:
    made = claim(name, request(count=count, device_class="mig"))
    made.spec["devices"]["constraints"] = [{kind: f"{DRIVER}/{attribute}"}]
    return made


def some_claim(rng: random.Random, name: str) -> ResourceClaim:
    forms: tuple[Callable[[], ResourceClaim], ...] = (
        lambda: claim(name, request(count=rng.choice((1, 2)), device_class="mig")),
        lambda: constrained(name, "matchAttribute", "parentUUID", 2),
        lambda: constrained(name, "distinctAttribute", "uuid", 2),
        lambda: claim(name, request(device_class="share", capacity={"requests": {"memory": rng.choice("235")}})),
        lambda: claim(name, request(count=rng.choice((1, 2, 3)))),
        lambda: claim(name, request(device_class="mig"), request("more", count=2)),
        lambda: claim(name, {"name": "all", "exactly": {"deviceClassName": "mig", "allocationMode": "All"}}),
        lambda: claim(name, request(device_class="mig", selectors=[{"cel": {"expression": "1 == 2"}}])),
        lambda: claim(name, request(device_class="mig", selectors=[{"cel": {"expression": ON_NODE_B}}])),
    )
    return rng.choice(forms)()


def told(allocator: Allocator, inventory: Inventory, waiting: Any, asked: ResourceClaim) -> object:
    """All that anybody sees of a decision, share ids aside."""
    decision = allocator.allocate(inventory, waiting, [asked])
    if not isinstance(decision, Allocation):
        return decision, str(allocator.explain(inventory, waiting, [asked]))
    results = [(one.pool, one.device, one.consumed_capacity) for one in decision.claims[0].results]
    return encode_decision(decision_of(decision, decision.claims[0])), results


FULL_SHARE = 97
"""A seed in which a GPU of a mixed node is given in shares, and nothing is left of it: it is not true that none is."""


@pytest.mark.parametrize("seed", sampled((FULL_SHARE, *(one for one in range(600) if one != FULL_SHARE)), 7, 60))
def test_who_remembers_answers_as_who_never_saw_anything(seed: int) -> None:
    rng = random.Random(seed)
    inventory, warm = some_inventory("abcd"[: rng.choice((2, 3, 4))]), Allocator()
    held: list[Allocation] = []
    for number in range(STEPS):
        asked = some_claim(rng, f"c{number}")
        spec: dict[str, Any] = {"nodeSelector": {"zone": "x"}} if rng.random() < 0.2 else {}
        waiting = pod(f"p{number}", asked.metadata.name, **spec)
        assert told(warm, inventory, waiting, asked) == told(Allocator(), inventory, waiting, asked)
        decision = warm.allocate(inventory, waiting, [asked])
        if isinstance(decision, Allocation):
            commit(inventory, decision)
            held.append(decision)
        if held and rng.random() < 0.4:
            give_back(inventory, held.pop(rng.randrange(len(held))))
        inventory.check()


def mixed(name: str, *sizes: int) -> list[ResourceSlice]:
    """The slices of a node with GPUs in blocks of these sizes, linked inside, and one part of a GPU in MIG mode: a node
    about whose GPUs the rules are asked."""
    made = machine(f"of-{name}", blocks(*sizes, 1, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4)
    gpus = (*made.gpus[:-1], replace(made.gpus[-1], mig_enabled=True))
    return [_with_memory(pool_slice(name, replace(made, gpus=gpus, mig_devices=(_part(gpus[-1], 0),))), "80Gi")]


def _with_memory(page: ResourceSlice, amount: str) -> ResourceSlice:
    capacity = {"memory": DeviceCapacity(value=amount)}
    devices = [msgspec.structs.replace(one, capacity=capacity) for one in page.spec.devices]
    return msgspec.structs.replace(page, spec=msgspec.structs.replace(page.spec, devices=devices))


ONE_GPU = machine("of-p", blocks(1, inside="X", outside="X"))
ANY_OF = device_class(
    "any",
    selectors=[
        {"cel": {"expression": " || ".join(f'device.attributes["{DRIVER}"].type == "{one}"' for one in ("gpu", "mig"))}}
    ],
)
ONLY_RULES_TELL = [{"matchAttribute": f"{DRIVER}/type"}] * 3
"""A constraint that any device meets by itself."""
SOME_MEMORY = {"requests": {"memory": "2Gi"}}


def on_demand(name: str, count: int) -> list[ResourceSlice]:
    made = machine(f"of-{name}", blocks(count, inside="NV12", outside="X"), nvlink_count=12, nvlink_generation=4)
    return mig_slices(name, made, [A100] * count)


def parts_alone(name: str) -> list[ResourceSlice]:
    return mig_slices(name, ONE_GPU, [A100], foreign={0: [MigPart("7g.80gb", 0, 8, 7)]}, without_whole=[0])


COMES_AND_GOES: dict[str, tuple[Any, ...]] = {
    # The nodes that stay, the one that comes and goes, one that joins later, what is asked for.
    "parts": (
        {"a": on_demand("a", 4), "b": on_demand("b", 2)},
        parts_alone("p"),
        on_demand("d", 8),
        claim("c", request(device_class="any")),
    ),
    "shares": (
        {"a": mixed("a", 4), "b": mixed("b", 2)},
        [in_shares(pool_slice("p", ONE_GPU), 1)],  # too small for who asks
        mixed("d", 8),
        claim("c", request(capacity=SOME_MEMORY)),
    ),
}


@pytest.mark.parametrize("start_with", [True, False], ids=["goes", "comes"])
@pytest.mark.parametrize("case", COMES_AND_GOES.values(), ids=COMES_AND_GOES.keys())
def test_a_kind_that_comes_or_goes_leaves_no_rank_of_another_form_behind(
    case: tuple[Any, ...], *, start_with: bool
) -> None:
    """Ranks count otherwise where some node gives parts, or shares, for the same request."""
    stay, passing, later, asked = case
    asked.spec["devices"]["constraints"] = ONLY_RULES_TELL
    waiting = pod("p", "c")
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name) for name in (*stay, "p")],
        slices=[page for pages in (*stay.values(), passing if start_with else []) for page in pages],
        classes=[*mig_classes(), ANY_OF],
    )
    warm = Allocator()
    assert isinstance(warm.allocate(inventory, waiting, [asked]), Allocation)
    for page in passing:
        inventory.change_slice(*((page, None) if start_with else (None, page)))
    inventory.set_node(node("d"))
    for page in later:
        inventory.change_slice(None, page)
    assert told(warm, inventory, waiting, asked) == told(Allocator(), inventory, waiting, asked)


def test_after_one_change_one_node_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "abcdefghij"
    inventory, allocator = some_inventory(names), Allocator()
    posed: list[str] = []
    genuine = node_rules._pose

    def counted(inventory: Inventory, name: str, *rest: Any) -> Any:
        posed.append(name)
        return genuine(inventory, name, *rest)

    monkeypatch.setattr(node_rules, "_pose", counted)
    for number in range(4):
        asked = claim(f"c{number}", request(device_class="mig"))
        decision = allocator.allocate(inventory, pod(f"p{number}", asked.metadata.name), [asked])
        assert isinstance(decision, Allocation)
        assert decision.node == "a"
        commit(inventory, decision)
    # Equal nodes are one; then the node that changed is asked, and the winner for its devices.
    assert len(posed) <= 2 * 4
    assert set(posed) <= {"a", "b"}


def changed(device: Device, **fields: Any) -> Device:
    return msgspec.structs.replace(device, **fields) if device.name.startswith("mig-") else device


CHANGES: dict[str, Callable[[Device], Device]] = {
    "attribute": lambda one: changed(one, attributes={**one.attributes, "profile": DeviceAttribute(string="2g.20gb")}),
    "capacity": lambda one: changed(one, capacity={"memory": DeviceCapacity(value="1")}),
    "taint": lambda one: changed(one, taints=[OUR_TAINT, Taint(key="sick", effect="NoSchedule")]),
    "opted out": lambda one: changed(one, taints=[]),
    "counters": lambda one: changed(one, consumes_counters=[]),
    "shareable": lambda one: changed(one, allow_multiple_allocations=True),
    "conditions": lambda one: changed(one, binding_conditions=["ready"], binding_failure_conditions=["bad"]),
    "other parent": lambda one: changed(
        one, attributes={**one.attributes, "parentUUID": DeviceAttribute(string="the same for all")}
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_nodes_that_differ_in_more_than_identities_are_of_two_kinds(change: Callable[[Device], Device]) -> None:
    slices = [*pages("a"), *pages("b"), *pages("c", change)]
    inventory = make_inventory(DRIVER, nodes=map(node, "abc"), slices=slices, classes=CLASSES)
    places = [inventory.state(name) for name in "abc"]
    assert places[0] == places[1]
    assert places[0] != places[2]


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    judgements = Judgements(most=6)
    inventory = some_inventory("a")
    place = inventory.state("a")
    assert not isinstance(place, str)
    for way in "abcabca":
        judgements.about(way).refuse(place, DoesNotFit(), ["default/c"])
        assert len(judgements) <= 8
    assert place in judgements.about("a").known
    assert place not in judgements.about("b").known


def test_a_reason_that_names_a_claim_or_a_pool_is_not_remembered() -> None:
    about = Judgements(6).about("way")
    place = some_inventory("a").state("a")
    assert not isinstance(place, str)
    about.refuse(place, DoesNotFit(note="claim default/c: 2 devices are to differ"), ["default/c"])
    assert not about.known
