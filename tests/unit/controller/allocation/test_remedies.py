"""What would help a waiting pod is named if and only if it would. The slow version counts GPUs in Python."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dracaena.api.objects import Pod, Taint, Toleration
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation import remedies
from dracaena.controller.allocation.explanation import Reason, Unsatisfied, ended
from dracaena.controller.allocation.nodes.node_resources import FULL
from dracaena.controller.allocation.remedies import MOST_REMEDIES
from dracaena.controller.simulation import Simulation
from dracaena.controller.state.quotas import Quotas
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    node,
    own_config,
    pod,
    policy,
    pool_slice,
    request,
)
from support.seeds import sampled

SICK = Taint(key="sick", value="yes", effect="NoSchedule")
TEAM = Taint(key="team", value="other", effect="NoSchedule")
LOST = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute")
STOPPED = Taint(key="node.cloudprovider.kubernetes.io/shutdown", effect="NoSchedule")
LEAVING = Taint(key="karpenter.sh/disrupted", effect="NoSchedule")
HOPPER = machine("hopper", blocks(8, inside="NV18", outside="NV18"), nvlink_count=18, product_name="H100")
AMPERE = machine("ampere", blocks(2, 2, inside="NV12", outside="NODE"), nvlink_count=12, product_name="A100")
MACHINES = {"H100": HOPPER, "A100": AMPERE}


@dataclass(frozen=True)
class Host:
    """A node."""

    name: str
    product: str = "H100"
    taken: frozenset[int] = frozenset()
    sick: frozenset[int] = frozenset()
    cordoned: bool = False
    taint: Taint | None = None

    @property
    def gpus(self) -> int:
        return len(MACHINES[self.product].gpus)

    def serves(self, count: int, product: str | None) -> bool:
        """Whether a pod may run here and gets its GPUs."""
        free = set(range(self.gpus)) - self.taken - self.sick
        is_open = not self.cordoned and self.taint is None
        return is_open and product in (None, self.product) and len(free) >= count


def simulation(hosts: Sequence[Host], *more: ResourceClaim) -> Simulation:
    held = [
        holding(claim(f"of-{host.name}"), host.name, *(device_name(MACHINES[host.product], o) for o in host.taken))
        for host in hosts
        if host.taken
    ]
    return Simulation(
        DRIVER,
        nodes=[node(one.name, unschedulable=one.cordoned, taints=[one.taint] if one.taint else []) for one in hosts],
        slices=[pool_slice(one.name, MACHINES[one.product], foreign={o: [SICK] for o in one.sick}) for one in hosts],
        classes=[device_class()],
        claims=[*held, *more],
    )


def asking(count: int, product: str | None = None, **more: Any) -> ResourceClaim:
    selector = [{"cel": {"expression": f'device.attributes["{DRIVER}"].productName == "{product}"'}}]
    fields: dict[str, Any] = {"selectors": selector} if product else {}
    return claim("c", request(count=count, **fields), **more)


def either(count: int, **fields: Any) -> ResourceClaim:
    """A claim for twice the devices, or that many."""
    alternatives = [{"name": f"n{n}", "deviceClassName": DRIVER, "count": n, **fields} for n in (2 * count, count)]
    return claim("c", {"name": "any", "firstAvailable": alternatives})


def what_helps(hosts: Sequence[Host], asked: ResourceClaim, waiting: Pod | None = None) -> tuple[str, ...]:
    (outcome,) = simulation(hosts, asked).decide(waiting or pod("p", asked.metadata.name))
    assert outcome.node is None, outcome
    return outcome.remedies


ALL = frozenset(range(8))


@pytest.mark.parametrize(
    ("hosts", "asked", "helps"),
    [
        ([Host("a", taken=ALL)], asking(1), ["wait until pods leave node a, which can serve it then"]),
        (
            [Host("a", taken=frozenset({0, 1, 2}))],
            asking(8),
            [
                "wait until pods leave node a, which can serve it then",
                "ask for 4 in place of 8, which node a can give now",
            ],
        ),
        ([Host("a")], asking(12), ["ask for 8 in place of 12, which node a can give now"]),
        ([Host("a", taken=ALL - {5})], asking(3), ["wait until", "ask for 1 in place of 3, which node a can give now"]),
        (
            [Host("a", taken=ALL), Host("b", "A100")],
            asking(2, "H100"),
            ["wait until pods leave node a", "leave out the selectors of its claims, which node b can give now"],
        ),
        (
            [Host("a", cordoned=True), Host("b", taken=ALL)],
            asking(2),
            ["wait until pods leave node b", "uncordon node a"],
        ),
        ([Host("a", taint=TEAM)], asking(2), ["tolerate taint team of node a, if its admin agrees"]),
        ([Host("a", taint=LOST)], asking(2), ["repair node a, which has taint node.kubernetes.io/unreachable"]),
        (
            [Host("a")],
            either(2, selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].productName == "B200"'}}]),
            ["leave out the selectors of its claims, which node a can give now"],
        ),
        ([Host("a", sick=ALL - {1})], either(4), ["clear the taints of GPUs of node a"]),
        ([Host("a", taken=ALL - {1})], either(4), ["wait until pods leave node a, which can serve it then"]),
        ([Host("a", taint=STOPPED)], asking(2), [f"repair node a, which has taint {STOPPED.key}"]),
        ([Host("a", taint=LEAVING)], asking(2), []),
        ([Host("a", sick=ALL - {1})], asking(2), ["ask for 1 in place of 2", "clear the taints of GPUs of node a"]),
        ([Host("a", "A100")], asking(2, "B200"), ["leave out the selectors of its claims, which node a can give now"]),
        (
            [Host("a", "A100")],
            asking(4, configs=[own_config(policy("NVLink"))]),
            ["ask for 2 in place of 4", "leave out the TopologyPolicy of its claims, which node a can give now"],
        ),
        ([Host("a", cordoned=True, taken=ALL)], asking(2), []),
        (
            [Host("a", taken=frozenset({0}))],
            claim("c", {"name": "all", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}}),
            ["wait until pods leave node a, which can serve it then"],
        ),
        ([], asking(2), []),
    ],
)
def test_what_would_help_is_named(hosts: Sequence[Host], asked: ResourceClaim, helps: Sequence[str]) -> None:
    found = what_helps(hosts, asked)
    assert len(found) == len(helps), found
    assert all(one.startswith(begin) for one, begin in zip(found, helps, strict=True)), found


def test_no_more_is_named_than_people_read() -> None:
    hosts = [Host("a", taken=ALL - {1}), Host("b", cordoned=True), Host("c", taint=TEAM), Host("d", "A100")]
    assert len(what_helps(hosts, asking(3, "H100"))) == MOST_REMEDIES


def test_a_claim_of_several_such_requests_is_not_made_smaller() -> None:
    asked = claim("c", request("x", 2), request("y", 3))
    assert what_helps([Host("a", taken=ALL - {1, 2, 3})], asked) == (
        "wait until pods leave node a, which can serve it then",
    )


def test_what_its_pod_has_already_is_not_changed() -> None:
    has = holding(claim("has", request(count=4)), "a", *(device_name(HOPPER, ordinal) for ordinal in range(4)))
    world = simulation([Host("a", taken=frozenset({4, 5}))], has, claim("c", request(count=4)))
    (outcome,) = world.decide(pod("p", "has", "c"))
    assert "ask for 2 in place of 4, which node a can give now" in outcome.remedies


def reason(text: str, *nodes: str) -> Reason:
    return Reason(text, len(nodes), nodes)


def test_nodes_of_each_reason_are_asked_whether_waiting_helps() -> None:
    why = Unsatisfied(6, (reason("cordoned", "a", "b", "c"), reason("1 in use", "d", "e"), reason(f"with {FULL}", "f")))
    asked: list[str] = []

    def serves_if_left(name: str) -> bool:
        asked.append(name)
        return name == "e"

    found = ended(remedies.remedies(pod("p", "c"), [asking(1)], why, lambda *_args: None, serves_if_left))
    assert found == ("wait until pods leave node e, which can serve it then",)
    assert asked == ["a", "d", "f", "b", "e"]


def test_a_hundred_taints_are_not_tried_one_by_one() -> None:
    why = Unsatisfied(
        100, tuple(reason(f"with taint team-{n} that the pod does not tolerate", "a") for n in range(100))
    )
    asked: list[Pod] = []

    def node_for(asking: Pod, _claims: Sequence[ResourceClaim]) -> None:
        asked.append(asking)

    assert ended(remedies.remedies(pod("p", "c"), [asking(1)], why, node_for, lambda _node: False)) == ()
    assert [one.spec.tolerations[-1].key for one in asked] == ["team-0", "team-1", "team-2"]


# Random clusters


def drawn(rng: random.Random) -> tuple[list[Host], int, str | None]:
    busy, ill = rng.choice([0.3, 0.6, 0.9]), rng.choice([0, 0, 0.3])

    def some(product: str, chance: float) -> frozenset[int]:
        return frozenset(o for o in range(len(MACHINES[product].gpus)) if rng.random() < chance)

    hosts = []
    for number in range(rng.randint(1, 4)):
        product = rng.choice(["H100", "A100"])
        taken = some(product, busy)
        hosts.append(
            Host(
                f"n{number}",
                product,
                taken,
                some(product, ill) - taken,
                rng.random() < 0.3,
                rng.choice([None, None, TEAM, LOST]),
            )
        )
    return hosts, rng.choice([1, 2, 3, 4, 6, 8, 9]), rng.choice([None, None, "H100", "A100", "B200"])


def remedied(text: str, hosts: Sequence[Host], count: int, product: str | None) -> bool:
    """Whether it is true that this would help."""
    (name,) = re.findall(r"node (n\d)", text)
    (host,) = (one for one in hosts if one.name == name)
    if text.startswith("wait"):
        return replace(host, taken=frozenset()).serves(count, product)
    if text.startswith("ask"):
        (fewer,) = re.findall(r"ask for (\d+) in place of", text)
        return f"in place of {count}," in text and int(fewer) < count and host.serves(int(fewer), product)
    if text.startswith("leave out"):
        return product is not None and host.serves(count, None)
    if text.startswith("uncordon"):
        return host.cordoned and replace(host, cordoned=False).serves(count, product)
    if text.startswith("clear"):
        return bool(host.sick) and replace(host, sick=frozenset()).serves(count, product)
    taint = host.taint
    words = "repair node" if taint is LOST else "tolerate taint"
    return taint is not None and text.startswith(words) and replace(host, taint=None).serves(count, product)


def could_help(hosts: Sequence[Host], count: int, product: str | None) -> Iterator[str]:
    """Yield how each remedy begins that some node makes true."""
    smaller = [1 << power for power in range(4) if 1 << power < count]
    if any(host.serves(one, product) for host in hosts for one in smaller):
        yield "ask for"
    changes: tuple[tuple[str, Callable[[Host], Host]], ...] = (
        ("wait", lambda host: replace(host, taken=frozenset())),
        ("uncordon", lambda host: replace(host, cordoned=False)),
        ("clear", lambda host: replace(host, sick=frozenset())),
        ("tolerate taint|repair node", lambda host: replace(host, taint=None)),
    )
    for begin, change in changes:
        if any(change(host).serves(count, product) for host in hosts):
            yield begin
    if product and any(host.serves(count, None) for host in hosts):
        yield "leave out"


def searched(seeds: range) -> Counter[str]:
    """Compare with the slow version; return how often each remedy was named."""
    named: Counter[str] = Counter()
    for seed in seeds:
        hosts, count, product = drawn(random.Random(seed))
        if any(host.serves(count, product) for host in hosts):
            continue
        found = what_helps(hosts, asking(count, product))
        for text in found:
            assert ";" not in text
            assert remedied(text, hosts, count, product), (seed, text)
            named[text.split()[0]] += 1
        if len(found) < MOST_REMEDIES:
            for begin in could_help(hosts, count, product):
                assert any(re.match(begin, text) for text in found), (seed, begin, found)
    return named


@pytest.mark.parametrize("first", sampled(range(0, 4_000, 400), 1, 5))
def test_in_random_clusters_what_would_help_is_named_and_nothing_else(first: int) -> None:
    named = searched(range(first, first + 400))
    assert set(named) == {"wait", "ask", "leave", "uncordon", "clear", "tolerate", "repair"}, named


def _finds(seeds: range) -> bool:
    try:
        searched(seeds)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("fault", ["no cordon", "one fewer", "any selector", "all taints", "never waits", "not asked"])
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "no cordon":
        monkeypatch.setattr(remedies, "CORDONED", "closed")
    elif fault == "one fewer":
        monkeypatch.setattr(remedies, "_count", lambda entry: min(entry["count"], 2))
    elif fault == "any selector":
        monkeypatch.setattr(remedies, "_without_selectors", remedies._without_policies)
    elif fault == "all taints":
        monkeypatch.setattr(remedies, "CORDON", Toleration(operator="Exists"))
    elif fault == "never waits":
        monkeypatch.setattr(Quotas, "node_to_keep", lambda *_args, **_options: None)
    else:
        right = remedies._fewer
        monkeypatch.setattr(remedies, "_fewer", lambda pod, claims: iter(list(right(pod, claims))[:1]))
    assert _finds(range(400))
