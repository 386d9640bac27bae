"""What can never be is told apart from what is not now. The slow version tries all sets of all GPUs of each node, with
conditions in Python in place of CEL, tables and masks.

Each world has few nodes, so that a reason names all that it is about.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import msgspec
import pytest

from dracaena.api.device_id import DeviceId
from dracaena.api.links import LinkLevel
from dracaena.api.machine import Machine
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.explanation import NAMES_SHOWN, Unsatisfied
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk import lasting
from dracaena.controller.allocation.walk.lasting import LastingLacks
from dracaena.controller.simulation import make_inventory
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    machine,
    node,
    own_config,
    pod,
    policy,
    pool_slice,
    request,
)
from support.reasons.recording import untrue_reasons
from support.seeds import sampled

SICK = Taint(key="sick", value="yes", effect="NoSchedule")
MACHINES = (
    machine("hopper", blocks(8, inside="NV18", outside="NV18"), nvlink_count=18, product_name="H100"),
    machine("ampere", blocks(2, 2, inside="NV12", outside="NODE"), nvlink_count=12, product_name="A100"),
    machine("turing", blocks(2, 2, inside="PIX", outside="SYS", numa=True), product_name="T4"),
    machine("single", blocks(1, inside="PIX", outside="PIX"), product_name="T4"),
)
OUTSIDE = (f"without usable GPUs of {DRIVER}", "whose GPUs kube-scheduler allocates (no taint of ours)", "cordoned")


@dataclass(frozen=True)
class Asked:
    """One alternative, as the API has it and in Python."""

    count: int
    fields: dict[str, Any] = field(default_factory=dict)
    matches: Callable[[Machine, int], bool] = lambda _machine, _ordinal: True
    unknown: str = ""
    """What is said of a name in it that no GPU has."""


def selecting(count: int, expression: str, matches: Callable[[Machine, int], bool], unknown: str = "") -> Asked:
    return Asked(count, {"selectors": [{"cel": {"expression": expression}}]}, matches, unknown)


def random_asked(rng: random.Random) -> Asked:
    count = rng.choice([1, 1, 2, 2, 3, 4, 5, 8, 9])
    name, most = rng.choice(["H100", "A100", "T4", "B200"]), rng.randrange(4)
    uuid = rng.choice([gpu.uuid for made in MACHINES for gpu in made.gpus] + ["GPU-none"])
    own, foreign = f'device.attributes["{DRIVER}"]', 'device.attributes["gpu.nvidia.com"]'
    return rng.choice(
        [
            Asked(count),
            Asked(count),
            selecting(count, f'{own}.productName == "{name}"', lambda made, o: made.gpus[o].product_name == name),
            selecting(count, f"{own}.ordinal <= {most}", lambda _, o: o <= most),
            selecting(1, f'{own}.uuid == "{uuid}"', lambda made, o: made.gpus[o].uuid == uuid),
            selecting(
                count,
                f'"productName" in {foreign} && {foreign}.productName == "H100"',
                lambda _made, _ordinal: False,
                "no GPU has attributes of the domain gpu.nvidia.com: "
                f"their domains are {DRIVER}, resource.kubernetes.io",
            ),
        ]
    )


@dataclass
class World:
    """A small cluster and one claim in it, with a mistake of one kind or none."""

    machines: dict[str, Machine]
    taken: dict[str, set[int]]
    sick: dict[str, set[int]]
    opted_out: set[str]
    alternatives: tuple[Asked, ...]
    attribute: str
    requirement: str

    @classmethod
    def made(cls, seed: int) -> World:
        rng = random.Random(seed)
        machines = {f"n{number}": rng.choice(MACHINES) for number in range(rng.randint(1, NAMES_SHOWN))}
        busy, ill = rng.choice([0, 0.5, 0.9, 1]), rng.choice([0, 0, 0.2, 1])

        def drawn(chance: float) -> dict[str, set[int]]:
            return {
                name: {ordinal for ordinal in range(len(one.gpus)) if rng.random() < chance}
                for name, one in machines.items()
            }

        return cls(
            machines,
            taken=drawn(busy),
            sick=drawn(ill),
            opted_out={name for name in machines if rng.random() < 0.1},
            alternatives=tuple(random_asked(rng) for _ in range(rng.choice([1, 1, 1, 2]))),
            attribute=rng.choice(
                ["", "", "resource.kubernetes.io/numaNode", f"{DRIVER}/nvlinkGroup", "a.example/rack"]
            ),
            requirement=rng.choice(["BestEffort", "BestEffort", "NVLink", "PIX"]),
        )

    def inventory(self) -> Inventory:
        slices = [
            pool_slice(name, made, foreign={o: [SICK] for o in self.sick[name]})
            if name not in self.opted_out
            else pool_slice(name, made, taints=())
            for name, made in self.machines.items()
        ]
        inventory = make_inventory(
            DRIVER,
            nodes=[node(name, unschedulable=name == "n2") for name in self.machines],
            slices=slices,
            classes=[device_class()],
        )
        inventory.hold(
            "others",
            frozenset(
                DeviceId(DRIVER, name, device_name(self.machines[name], ordinal))
                for name, ordinals in self.taken.items()
                for ordinal in ordinals
            ),
        )
        return inventory

    def claim(self) -> ResourceClaim:
        entries = [request(f"a{place}", one.count, **one.fields) for place, one in enumerate(self.alternatives)]
        asked = entries[0]
        if len(entries) > 1:
            asked = {"name": "r", "firstAvailable": [{"name": one["name"], **one["exactly"]} for one in entries]}
        made = claim("c", asked, configs=[own_config(policy(self.requirement))])
        if self.attribute:
            made.spec["devices"]["constraints"] = [{"matchAttribute": self.attribute}]
        return made

    def could(self, name: str, asked: Asked) -> bool:
        """Whether some set of all GPUs of a node would do, in use or not, sick or not."""
        made = self.machines[name]
        fitting = [ordinal for ordinal in range(len(made.gpus)) if asked.matches(made, ordinal)]
        return any(
            self._is_linked(made, chosen) and self._agrees(made, chosen)
            for chosen in combinations(fitting, asked.count)
        )

    def _is_linked(self, made: Machine, chosen: tuple[int, ...]) -> bool:
        links = {(a, b): made.topology.link(a, b) for a, b in combinations(chosen, 2)}
        if self.requirement == "PIX":
            near = (link.nvlinks or (link.level is not None and link.level <= LinkLevel.PIX) for link in links.values())
            return all(near)
        if self.requirement != "NVLink":
            return True
        reached = {chosen[0]}
        for _ in chosen:
            reached |= {o for pair, link in links.items() if link.nvlinks and reached & {*pair} for o in pair}
        return reached == {*chosen}

    def _agrees(self, made: Machine, chosen: tuple[int, ...]) -> bool:
        if self.attribute == "a.example/rack":
            return False
        if self.attribute.endswith("/nvlinkGroup"):
            return len({min((*made.topology.nvlink_peers(o), o)) for o in chosen}) == 1
        if self.attribute.endswith("/numaNode"):
            nodes = {made.topology.numa_nodes[o] for o in chosen}
            return len(nodes) == 1 and None not in nodes
        return True

    def check(self) -> str:
        """Hold what is said to the slow version; return what kind of answer it was."""
        found = Allocator().explain(self.inventory(), pod("p"), [self.claim()])
        if not isinstance(found, Unsatisfied):
            return "fits" if found is None else "refused"
        offering = [name for name in self.machines if name not in self.opted_out]
        possible = {name: [self.could(name, one) for one in self.alternatives] for name in offering}
        lasts = {name for one in found.reasons if one.lasting for name in one.nodes}
        passes = {name for one in found.reasons if not one.lasting and one.text not in OUTSIDE for name in one.nodes}
        for name in lasts:
            assert not possible[name][0], f"{name} could serve it: {found}"
        for name in passes:
            assert possible[name][0], f"{name} could never serve it: {found}"
        never = bool(offering) and not any(any(of_node) for of_node in possible.values())
        assert bool(found.never) == never, str(found)
        for one in found.reasons:
            assert not (one.lasting and "free" in one.text), str(found)
        largest = max((len(self.machines[name].gpus) for name in offering), default=0)
        if "largest has" in found.never:
            count = min(one.count for one in self.alternatives)
            assert largest < count, str(found)
            assert found.never.endswith(f"the largest has {largest}"), str(found)
        told = set(found.unknown) >= {one.unknown for one in self.alternatives[:1] if one.unknown}
        assert told or not lasts, str(found)
        rack = any("a.example/rack" in text for text in found.unknown)
        assert rack == (bool(lasts) and self.attribute == "a.example/rack"), str(found)
        return "never" if never else "not now"


@pytest.mark.parametrize("first", sampled(range(0, 2_000, 200), 1, 5))
def test_never_is_said_where_no_set_of_all_gpus_would_do_and_nowhere_else(first: int) -> None:
    answers = [World.made(seed).check() for seed in range(first, first + 200)]
    for kind in ("fits", "never", "not now"):
        assert answers.count(kind) > 10, kind


@pytest.mark.search
@pytest.mark.parametrize("fault", ["taints", "in use", "selectors", "one alternative", "nodes left out"])
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "taints":
        monkeypatch.setattr(lasting, "_tolerating", lambda question: question)
    elif fault == "in use":
        right = LastingLacks.never
        monkeypatch.setattr(
            LastingLacks,
            "never",
            lambda lacks, name: right(lacks, name) or lacks._rules.shortfall(name),
        )
    elif fault == "selectors":
        monkeypatch.setattr(LastingLacks, "never", lambda lacks, name: "small" if lacks.is_too_small(name) else None)
    elif fault == "one alternative":
        look = lasting.look_whether_ever
        monkeypatch.setattr(lasting, "look_whether_ever", lambda never, lacks, name: look(never, lacks[:1], name))
    else:
        monkeypatch.setattr(lasting, "look_whether_ever", lambda never, _lacks, _name: never.could())
    with pytest.raises(AssertionError), untrue_reasons():
        all(World.made(seed).check() for seed in range(400))


def told(claim_asked: ResourceClaim, **taken: int) -> str:
    """What is said in a cluster of 8 GPUs a node, of which so many are in use."""
    made = MACHINES[0]
    inventory = make_inventory(
        DRIVER,
        nodes=[node(name) for name in taken],
        slices=[pool_slice(name, made) for name in taken],
        classes=[device_class()],
    )
    names = {DeviceId(DRIVER, name, device_name(made, o)) for name, count in taken.items() for o in range(count)}
    inventory.hold("others", frozenset(names))
    found = Allocator().explain(inventory, pod("p"), [claim_asked])
    assert isinstance(found, Refused | Unsatisfied)
    return found.text if isinstance(found, Refused) else str(found)


def cel(expression: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}]}


def test_more_gpus_than_any_node_has_are_distinguished_from_gpus_that_are_in_use() -> None:
    assert (
        told(claim("c", request(count=9)), a=0, b=3)
        == "0/2 nodes fit: no node has 9 GPUs, the largest has 8; 2 with fewer than 9 GPUs (a, b)"
    )
    assert (
        told(claim("c", request(count=8)), a=1, b=3)
        == "0/2 nodes fit: 2 with 8 or more GPUs, fewer than 8 of them free (a, b)"
    )


def test_a_wrong_domain_is_reported_with_the_right_one() -> None:
    wrong = 'device.attributes["gpu.nvidia.com"].productName == "H100"'
    text = told(claim("c", request(**cel(wrong))), a=0)
    assert text == (
        f"claim default/c, request gpus: selector '{wrong}' has no answer for a device: no such key: productName; "
        "no GPU has the attribute gpu.nvidia.com/productName: did you mean gpu.dracaena.dev/productName?"
    )
    guarded = 'device.attributes["gpu.nvidia.com"].?productName.orValue("") == "H100"'
    assert told(claim("c", request(count=2, **cel(guarded))), a=0) == (
        "0/1 nodes fit: no node could serve it with all of its GPUs free; 1 with 0 of 2 GPUs that the requests accept "
        "(a); no GPU has the attribute gpu.nvidia.com/productName: did you mean gpu.dracaena.dev/productName?"
    )


def test_a_capacity_of_a_wrong_domain_and_a_misspelt_attribute_are_reported() -> None:
    capacity = 'device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("1Gi"))'
    assert "no GPU has the capacity gpu.nvidia.com/memory" in told(claim("c", request(**cel(capacity))), a=0)
    misspelt = f'device.attributes["{DRIVER}"].productNane == "H100"'
    expected = f"no GPU has the attribute {DRIVER}/productNane: did you mean {DRIVER}/productName?"
    assert told(claim("c", request(**cel(misspelt))), a=0).endswith(expected)


def test_a_constraint_on_an_attribute_that_no_device_has_says_so() -> None:
    asked = claim("c", request(count=2))
    asked.spec["devices"]["constraints"] = [{"matchAttribute": "example.com/rack"}]
    assert told(asked, a=0, b=8) == (
        "0/2 nodes fit: no node could serve it with all of its GPUs free; 2 without 2 GPUs that agree in "
        "example.com/rack (a, b); no GPU has the attribute example.com/rack"
    )
    asked.spec["devices"]["constraints"] = [{"matchAttribute": "gpu.nvidia.com/productName"}]
    assert told(asked, a=0).endswith("gpu.nvidia.com/productName: did you mean gpu.dracaena.dev/productName?")


def test_gpus_with_taints_are_not_said_to_be_in_use_nor_to_be_missing_for_ever() -> None:
    made = MACHINES[0]
    inventory = make_inventory(
        DRIVER, nodes=[node("a")], slices=[pool_slice("a", made, foreign={0: [SICK]})], classes=[device_class()]
    )
    found = Allocator().explain(inventory, pod("p"), [claim("c", request(count=8))])
    text = "1 with 8 or more GPUs, fewer than 8 of them without taints that the claim does not tolerate (a)"
    assert str(found) == f"0/1 nodes fit: {text}"


@pytest.mark.parametrize(
    ("tainted", "taken", "count", "told"),
    [
        ({0}, {0}, 1, "with 1"),
        (set(range(8)), set(), 1, "whose GPUs all have taints that the claim does not tolerate"),
        ({0}, set(range(1, 8)), 1, "whose free GPUs all have taints that the claim does not tolerate"),
        (set(), set(range(8)), 1, "without a free GPU"),
        ({0, 1}, {2, 3, 4, 5, 6}, 2, "with 2 or more GPUs, fewer than 2 of them free and untainted"),
        ({0}, {1, 2, 3, 4, 5, 6, 7}, 2, "with 2 or more GPUs, fewer than 2 of them free"),
    ],
)
def test_free_gpus_with_taints_are_distinguished_from_gpus_in_use(
    tainted: set[int], taken: set[int], count: int, told: str
) -> None:
    made = MACHINES[0]
    inventory = make_inventory(
        DRIVER,
        nodes=[node("a")],
        slices=[pool_slice("a", made, foreign={o: [SICK] for o in tainted})],
        classes=[device_class()],
    )
    inventory.hold("others", frozenset(DeviceId(DRIVER, "a", device_name(made, ordinal)) for ordinal in taken))
    found = Allocator().explain(inventory, pod("p"), [claim("c", request(count=count))])
    assert found is None if told == "with 1" else str(found) == f"0/1 nodes fit: 1 {told} (a)"


def test_a_node_without_readable_gpus_is_not_said_to_be_left_to_kube_scheduler() -> None:
    made = MACHINES[0]
    whole = pool_slice("a", made)
    cases = {
        "empty": [],
        "unreadable": [msgspec.structs.replace(one, attributes={}) for one in whole.spec.devices],
        "of a later version": [msgspec.structs.replace(one, unknown="new") for one in whole.spec.devices],
    }
    for case, devices in cases.items():
        spec = msgspec.structs.replace(whole.spec, devices=devices)
        inventory = make_inventory(
            DRIVER, nodes=[node("a")], slices=[msgspec.structs.replace(whole, spec=spec)], classes=[device_class()]
        )
        found = Allocator().explain(inventory, pod("p"), [claim("c", request())])
        assert str(found) == f"0/1 nodes fit: 1 without usable GPUs of {DRIVER} (a)", case


def test_gpus_that_agree_and_are_not_linked_as_required_are_not_said_to_disagree() -> None:
    made = MACHINES[2]
    inventory = make_inventory(DRIVER, nodes=[node("a")], slices=[pool_slice("a", made)], classes=[device_class()])
    asked = claim("c", request(count=2), configs=[own_config(policy("NVLink"))])
    asked.spec["devices"]["constraints"] = [{"matchAttribute": "resource.kubernetes.io/numaNode"}]
    found = str(Allocator().explain(inventory, pod("p"), [asked]))
    assert "1 whose GPUs that agree in resource.kubernetes.io/numaNode do not meet requirement NVLink (a)" in found


def test_a_selector_failure_stays_a_refusal_of_its_kind() -> None:
    inventory = make_inventory(
        DRIVER, nodes=[node("a")], slices=[pool_slice("a", MACHINES[0])], classes=[device_class()]
    )
    found = Allocator().explain(inventory, pod("p"), [claim("c", request(**cel('device.attributes["x.y"].z == 1')))])
    assert isinstance(found, Refused)
    assert found.kind is RefusalKind.SELECTOR


@pytest.mark.parametrize("b", ["not published", "left to kube-scheduler"])
def test_nothing_is_said_of_the_size_of_nodes_that_offer_nothing(b: str) -> None:
    large = machine("large", blocks(16, inside="PIX", outside="PIX"))
    slices = [pool_slice("a", MACHINES[0])]
    if b == "left to kube-scheduler":
        slices.append(pool_slice("b", large, taints=()))
    inventory = make_inventory(DRIVER, nodes=[node("a"), node("b")], slices=slices, classes=[device_class()])
    found = Allocator().explain(inventory, pod("p", "c"), [claim("c", request(count=9))])
    assert isinstance(found, Unsatisfied)
    assert found.never == "no node that offers GPUs has 9 GPUs, the largest has 8"
    assert len(found.reasons) == 2
