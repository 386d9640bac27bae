"""Which nodes are refused because of claims for other drivers: those that certainly cannot serve them, and no others.

The oracle tries every assignment of free devices to requests. With each fault below, one of the first cases differs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Any

import pytest

from dracaena.api.device_id import DeviceId
from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.legal.books import Books, Holding
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.other_devices import OtherDevices
from dracaena.controller.allocation.walk import other_claims
from dracaena.controller.allocation.walk.other_claims import OtherClaims
from support.allocation import DRIVER, claim, node
from support.other_drivers import FAST, NIC_DRIVER, SLOW, nic, nic_class, nic_request, nic_slice
from support.seeds import in_tiers

NODES = ("a", "b")
TOLERATION = [{"key": "cable", "operator": "Exists"}]


@dataclass
class Card:
    """A network card as the oracle sees it."""

    name: str
    nodes: Sequence[str]
    speed: str
    tainted: bool
    held: bool


@dataclass
class Wish:
    """One request for network cards."""

    count: int
    speed: str | None
    tolerates: bool


@dataclass
class Case:
    """Cards of two nodes, some of which both reach, and claims of one pod."""

    cards: list[Card] = field(default_factory=list)
    claims: list[list[Wish]] = field(default_factory=list)

    def can_serve(self, name: str, *, as_free: bool) -> bool:
        """Whether some assignment of free cards of a node serves all wishes."""
        free = [card for card in self.cards if name in card.nodes and (as_free or not card.held)]
        single = [wish for wishes in self.claims for wish in wishes for _ in range(wish.count)]
        return any(
            all(_suits(card, wish) for card, wish in zip(chosen, single, strict=True))
            for chosen in permutations(free, len(single))
        )


def _suits(card: Card, wish: Wish) -> bool:
    return wish.speed in (None, card.speed) and (wish.tolerates or not card.tainted)


def any_case(rng: random.Random) -> Case:
    case = Case()
    for place, nodes in enumerate((("a",), ("b",), NODES)):
        for number in range(rng.choice((0, 1, 2)) if place < 2 else rng.choice((0, 0, 1))):
            is_held = rng.random() < 0.4
            card = Card(f"{place}-{number}", nodes, rng.choice((FAST, SLOW)), rng.random() < 0.2, is_held)
            case.cards.append(card)
    for _ in range(rng.choice((1, 1, 2))):
        wishes = [
            Wish(rng.choice((1, 1, 2)), rng.choice((None, FAST, SLOW)), rng.random() < 0.3)
            for _ in range(rng.choice((1, 1, 2)))
        ]
        case.claims.append(wishes)
    return case


def slices_of(case: Case) -> list[ResourceSlice]:
    pools: dict[str, list[dict[str, Any]]] = {}
    for card in case.cards:
        pool = "both" if len(card.nodes) > 1 else card.nodes[0]
        pools.setdefault(pool, []).append(nic(card.name, card.speed, tainted=card.tainted))
    where: dict[str, dict[str, Any]] = {"both": {"allNodes": True}}
    return [nic_slice(pool, devices, **where.get(pool, {})) for pool, devices in sorted(pools.items())]


def inventory_of(case: Case, rng: random.Random) -> Inventory:
    """Take everything in, in any order, with slices and holders that come and go."""
    inventory = Inventory(DRIVER)
    inventory.set_class(nic_class())
    steps: list[Callable[[], object]] = [partial(inventory.change_slice, None, item) for item in slices_of(case)]
    for card in case.cards:
        pool = "both" if len(card.nodes) > 1 else card.nodes[0]
        held = frozenset({Holding(f"of-{card.name}", DeviceId(NIC_DRIVER, pool, card.name))})
        steps.append(partial(inventory.hold, card.name, frozenset(), held))
    rng.shuffle(steps)
    for step in steps:
        step()
    for card in case.cards:
        if not card.held:
            inventory.release(card.name)
    return inventory


def refusals(case: Case, inventory: Inventory) -> OtherClaims:
    claims = [
        claim(
            f"c{place}",
            *(
                nic_request(
                    f"r{number}",
                    wish.count,
                    *([wish.speed] if wish.speed else []),
                    **({"tolerations": TOLERATION} if wish.tolerates else {}),
                )
                for number, wish in enumerate(wishes)
            ),
        )
        for place, wishes in enumerate(case.claims)
    ]
    demands = inventory.requests.read(claims)
    assert isinstance(demands, tuple)
    return OtherClaims(inventory.others, demands, CelSelectors(Features()), Effort())


def first_difference(seeds: range) -> int | None:
    for seed in seeds:
        rng = random.Random(seed)
        case = any_case(rng)
        inventory = inventory_of(case, rng)
        inventory.others.check()
        found = refusals(case, inventory)
        for name in NODES:
            for _ in range(2):  # worked out, and remembered
                if (found.lack(node(name)) is None) != case.can_serve(name, as_free=False):
                    return seed
                if (found.never(node(name)) is None) != case.can_serve(name, as_free=True):
                    return seed
    return None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", in_tiers(range(100), range(100, 1_000), range(1_000, 20_000)))
def test_a_node_is_refused_if_no_assignment_of_free_devices_serves_the_claims(seeds: range) -> None:
    assert first_difference(seeds) is None


def plant(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reach, hold = OtherDevices.reach, OtherDevices.hold
    if fault == "all-is-free":
        monkeypatch.setattr(OtherDevices, "reach", lambda self, name: (reach(self, name)[0], Books(())))
    elif fault == "nothing-is-released":
        monkeypatch.setattr(OtherDevices, "hold", lambda self, who, what: hold(self, who, what) if what else None)
    elif fault == "slices-of-all-nodes-are-forgotten":

        def of_one_node(self: OtherDevices, name: str) -> Any:
            kept = self._on_node.pop("", None)
            found = reach(self, name)
            if kept is not None:
                self._on_node[""] = kept
            return found

        monkeypatch.setattr(OtherDevices, "reach", of_one_node)
    elif fault == "each-claim-alone":

        def alone(self: OtherClaims, where: Any, *, as_free: bool) -> int | None:
            slices, held = self._devices.reach(where.metadata.name)
            books = Books(()) if as_free else held
            every = enumerate(self._claims)
            return next((place for place, one in every if not self._may_fit(where, (one,), slices, books)), None)

        monkeypatch.setattr(OtherClaims, "_first_refused", alone)
    else:
        monkeypatch.setattr(other_claims, "MAX_STEPS", 1)


@pytest.mark.parametrize(
    "fault",
    ["all-is-free", "nothing-is-released", "slices-of-all-nodes-are-forgotten", "each-claim-alone", "cut-off"],
)
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(fault, monkeypatch)
    assert first_difference(range(60)) is not None


@pytest.mark.parametrize(
    "published",
    [
        pytest.param(nic_slice("a", [nic("0", SLOW)], count=2), id="pool-is-not-complete"),
        pytest.param(nic_slice("a", [nic("0", SLOW, newField=1)]), id="device-of-a-newer-version"),
        pytest.param(nic_slice("a", [nic("0", SLOW)], nodeName="a", newField=1), id="slice-of-a-newer-version"),
    ],
)
def test_what_is_not_known_refuses_no_node(published: ResourceSlice) -> None:
    case = Case(claims=[[Wish(1, FAST, tolerates=False)]])
    inventory = inventory_of(case, random.Random(1))
    inventory.change_slice(None, published)
    found = refusals(case, inventory)
    assert found.lack(node("a")) is None
    assert found.lack(node("b")) is not None


def test_a_selector_that_fails_refuses_no_node() -> None:
    inventory = Inventory(DRIVER)
    inventory.set_class(nic_class("nic", f'device.attributes["{NIC_DRIVER}"].missing == 1'))
    inventory.change_slice(None, nic_slice("a", [nic("0")]))
    demands = inventory.requests.read([claim("c", nic_request())])
    assert isinstance(demands, tuple)
    assert OtherClaims(inventory.others, demands, CelSelectors(Features()), Effort()).lack(node("a")) is None


def test_the_reason_names_the_claim_and_says_whether_others_hold_what_suits_it() -> None:
    case = Case([Card("0-0", ["a"], FAST, tainted=False, held=True)], [[Wish(1, None, tolerates=False)]])
    found = refusals(case, inventory_of(case, random.Random(1)))
    suits = "devices that suit claim default/c0 (DeviceClass nic), which kube-scheduler allocates"
    assert (found.lack(node("a")), found.never(node("a"))) == (f"without free {suits}", None)
    assert found.never(node("b")) == f"without {suits}"
