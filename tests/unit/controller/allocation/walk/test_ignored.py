"""What is said in vain is found wherever it was planted, and nothing else is."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from dracaena.api import reasons
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import DeviceCapacity, ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk import ignored
from dracaena.controller.cache.pods import kept_pod
from dracaena.controller.simulation import Simulation, make_inventory
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    machine,
    node,
    own_config,
    pod,
    policy,
    pool_slice,
    request,
)
from support.seeds import sampled

MADE = machine("made", blocks(4, inside="NV12", outside="NV12"), product_name="A100", memory_bytes=40 << 30)
NVIDIA = "gpu.nvidia.com"
FOREIGN = {
    "opaque": {
        "driver": NVIDIA,
        "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {}},
    }
}
DEAD = {
    f'device.attributes["{NVIDIA}"].productName == "A100"': (
        f"no GPU has the attribute {NVIDIA}/productName: did you mean {DRIVER}/productName?"
    ),
    f'device.attributes["{DRIVER}"].productName == "A1000"': "its class and selectors match no GPU",
    'device.driver == "gpu.nvidia.com"': "its class and selectors match no GPU",
}
WHOLE = "no GPU can be shared: capacity.requests only say how large one has to be, and all of it is taken"
OF_IDENTITY = f'device.attributes["{DRIVER}"].uuid == "GPU-none"'
"""Which GPUs there are is not what a kind of GPU tells."""
LIVING = [f'device.attributes["{DRIVER}"].productName == "A100"', OF_IDENTITY, f'device.driver == "{DRIVER}"']
TOO_MANY = "no node that offers GPUs has 5 GPUs that its class and selectors match, the largest has 4"


def inventory(*extra: Any, allowed: tuple[str, ...] = ()) -> Inventory:
    made = make_inventory(DRIVER, nodes=[node("n")], slices=[pool_slice("n", MADE)], classes=[device_class(), *extra])
    made.allowed_drivers = frozenset(allowed)
    return made


def found(asking: Pod, *claims: ResourceClaim, there: Inventory | None = None) -> tuple[str, ...]:
    return Allocator().ignored(there or inventory(), asking, claims)


def cel(expression: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}]}


def using(*uses: tuple[str, str], **claims: str) -> Pod:
    """A pod that calls claims by these names, and whose container names these requests of them."""
    entries = [{"name": use, **({"request": named} if named else {})} for use, named in uses]
    return pod(
        "p",
        resourceClaims=[{"name": alias, "resourceClaimName": name} for alias, name in claims.items()],
        containers=[{"name": "main", "resources": {"claims": entries}}],
    )


@dataclass
class Planted:
    """A claim and its pod with some mistakes, and what has to be said of them."""

    asking: Pod
    asked: ResourceClaim
    texts: set[str]

    @classmethod
    def made(cls, seed: int) -> Planted:
        rng = random.Random(seed)
        texts: set[str] = set()
        requests, names = [], [f"r{number}" for number in range(rng.randint(1, 3))]
        for name in names:
            if rng.random() < 0.5:
                requests.append(request(name, **cls._details(rng, name, texts)))
                continue
            alternatives = []
            for place in range(2):
                full = f"{name}/a{place}"
                details = cls._details(rng, full, texts)
                expression = rng.choice([*DEAD, *LIVING]) if rng.random() < 0.4 else ""
                details |= cel(expression) if expression else {}
                count = rng.choice([1, 1, 1, 4, 5])
                details |= {"count": count} if count > 1 else {}
                small = cls._too_large(rng, details)
                why = DEAD.get(expression) or small or (TOO_MANY if count == 5 else "")
                why = "" if expression == OF_IDENTITY else why
                if why:
                    texts.add(f"claim default/c, request {full}: this alternative is never taken: {why}")
                alternatives.append({"name": f"a{place}", "deviceClassName": DRIVER, **details})
            requests.append({"name": name, "firstAvailable": alternatives})
        configs = [own_config(policy("BestEffort"))]
        if rng.random() < 0.3:
            configs.insert(rng.randrange(2), FOREIGN | ({"requests": names[:1]} if rng.random() < 0.5 else {}))
            texts.add(f"claim default/c: {reasons.foreign_config(NVIDIA, DRIVER)}")
        return cls(cls._pod(rng, names, texts), claim("c", *requests, configs=configs), texts)

    @staticmethod
    def _details(rng: random.Random, name: str, texts: set[str]) -> dict[str, Any]:
        capacity, text = rng.choice(
            [
                (None, ""),
                (None, ""),
                ("memory", WHOLE),
                (f"{NVIDIA}/memory", f"no GPU has the capacity {NVIDIA}/memory: did you mean memory?"),
                (f"{DRIVER}/memory", f"no GPU has the capacity {DRIVER}/memory: did you mean memory?"),
                ("cores", "no GPU has the capacity cores"),
            ]
        )
        if capacity is None:
            return {}
        texts.add(f"claim default/c, request {name}: {text}")
        return {"capacity": {"requests": {capacity: "10Gi"}}}

    @staticmethod
    def _too_large(rng: random.Random, details: dict[str, Any]) -> str:
        """Let an alternative that asks for memory want more than each GPU has, sometimes, and return what is told."""
        wanted = details.get("capacity", {}).get("requests", {})
        if "memory" not in wanted or rng.random() < 0.5:
            return ""
        wanted["memory"] = "41Gi"
        return "no GPU that its class and selectors match has 41 GiB of memory, the largest has 40 GiB of memory"

    @staticmethod
    def _pod(rng: random.Random, names: list[str], texts: set[str]) -> Pod:
        used = [name for name in names if rng.random() < 0.7]
        uses = [("gpus", name) for name in used]
        if rng.random() < 0.2:
            uses.append(("gpus", "wrong"))
            texts.add(
                f"no request wrong in claim gpus (there: {', '.join(names)}): the container gets nothing by that name"
            )
        if rng.random() < 0.2:
            uses, used = [*uses, ("gpus", "")], names
        texts |= {
            f"no container names request {name} of claim gpus: its devices are taken, and no container sees them"
            for name in names
            if name not in used
        }
        return using(*uses, gpus="c")


def check(seed: int) -> bool:
    planted = Planted.made(seed)
    for asking in (planted.asking, kept_pod(planted.asking)):  # as people write it, and as the controller keeps it
        assert set(found(asking, planted.asked)) == planted.texts, seed
    return bool(planted.texts)


@pytest.mark.parametrize("first", sampled(range(0, 2_000, 100), 1, 5))
def test_each_planted_mistake_is_reported_and_nothing_else_is(first: int) -> None:
    told = [check(seed) for seed in range(first, first + 100)]
    assert told.count(True) > 10
    assert told.count(False) > 0 or first > 0, "of the first hundred some have none; in others all may have one"


@pytest.mark.search
@pytest.mark.parametrize("part", ["_foreign", "_of_capacity", "_why_dead", "_of_containers"])
def test_a_part_that_finds_nothing_is_noticed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignored, part, lambda *_: None if part == "_why_dead" else iter(()))
    with pytest.raises(AssertionError):
        all(check(seed) or True for seed in range(200))


def test_an_alternative_is_dead_whose_gpus_lie_on_several_nodes() -> None:
    """The GPUs that match count node by node, all of them where they are in use, too; mode All takes any number."""
    other = machine("other", blocks(4, inside="NV12", outside="NV12"), product_name="H100", memory_bytes=80 << 30)
    there = make_inventory(
        DRIVER,
        nodes=[node(name) for name in ("a", "b", "c")],
        slices=[pool_slice("a", MADE), pool_slice("b", MADE), pool_slice("c", other)],
        classes=[device_class()],
    )

    def told(**first: Any) -> tuple[str, ...]:
        alternatives = [{"name": "a", "deviceClassName": DRIVER, **first}, {"name": "b", "deviceClassName": DRIVER}]
        return found(using(("g", ""), g="c"), claim("c", {"name": "r", "firstAvailable": alternatives}), there=there)

    h100 = cel(f'device.attributes["{DRIVER}"].productName == "H100"')
    assert told(**h100, count=4) == ()
    never = f"claim default/c, request r/a: this alternative is never taken: {TOO_MANY}"
    assert told(**h100, count=5) == (never,)
    assert told(count=5) == (never,), "those of all nodes together are enough"
    assert told(**h100, allocationMode="All") == ()
    assert told(count=4) == ()


def test_an_alternative_is_dead_that_wants_more_of_a_capacity_than_any_gpu_that_it_means_has() -> None:
    other = machine("other", blocks(4, inside="NV12", outside="NV12"), product_name="H100", memory_bytes=80 << 30)
    there = make_inventory(
        DRIVER,
        nodes=[node(name) for name in ("a", "b")],
        slices=[pool_slice("a", MADE), pool_slice("b", other)],
        classes=[device_class()],
    )

    def told(amount: str, **first: Any) -> list[str]:
        wanted = {"capacity": {"requests": {"memory": amount}}}
        alternatives = [
            {"name": "a", "deviceClassName": DRIVER, **wanted, **first},
            {"name": "b", "deviceClassName": DRIVER},
        ]
        asked = claim("c", {"name": "r", "firstAvailable": alternatives})
        said = found(using(("g", ""), g="c"), asked, there=there)
        never = "claim default/c, request r/a: this alternative is never taken: "
        return [text.removeprefix(never) for text in said if text.startswith(never)]

    a100 = cel(f'device.attributes["{DRIVER}"].productName == "A100"')
    small = "no GPU that its class and selectors match has {} of memory, the largest has {} of memory"
    assert told("80Gi") == told("80Gi", count=4) == told("40Gi", **a100) == []
    assert told("81Gi") == [small.format("81 GiB", "80 GiB")]
    assert told("41Gi", **a100) == [small.format("41 GiB", "40 GiB")], "larger ones are none that it means"
    few = "no node that offers GPUs has 5 GPUs that its class and selectors match"
    assert told("41Gi", count=5) == [f"{few} and that are large enough, the largest has 4"]
    assert told("40Gi", count=5) == [f"{few}, the largest has 4"]
    assert told("81Gi", allocationMode="All") == [small.format("81 GiB", "80 GiB")]


def test_amounts_of_shared_gpus_count_one_by_one_and_together() -> None:
    """A GPU with much memory and one with many cores are not one with both; what is in use counts as there."""

    def shared(name: str, memory_gib: int, cores: int) -> Any:
        made = pool_slice(name, machine(name, blocks(1, inside="PIX", outside="PIX")))
        capacity = {"memory": DeviceCapacity(value=f"{memory_gib}Gi"), "cores": DeviceCapacity(value=str(cores))}
        devices = [replace(one, allow_multiple_allocations=True, capacity=capacity) for one in made.spec.devices]
        return replace(made, spec=replace(made.spec, devices=devices))

    there = make_inventory(
        DRIVER,
        nodes=[node("a"), node("b")],
        slices=[shared("a", 80, 50), shared("b", 40, 100)],
        classes=[device_class()],
    )

    def told(**amounts: str) -> tuple[str, ...]:
        first = {"name": "a", "deviceClassName": DRIVER, "capacity": {"requests": amounts}}
        asked = claim("c", {"name": "r", "firstAvailable": [first, {"name": "b", "deviceClassName": DRIVER}]})
        return found(using(("g", ""), g="c"), asked, there=there)

    never = "claim default/c, request r/a: this alternative is never taken: no GPU that its class and selectors match"
    assert told(memory="80Gi", cores="50") == told(memory="40Gi", cores="100") == ()
    assert told(memory="81Gi", cores="10") == (f"{never} has 81 GiB of memory, the largest has 80 GiB of memory",)
    assert told(memory="1Gi", cores="101") == (f"{never} has 101 % of the cores, the largest has 100 % of the cores",)
    assert told(memory="80Gi", cores="100") == (f"{never} can give these amounts of its capacities together",)


def test_a_class_of_ours_with_a_configuration_for_another_driver_is_reported() -> None:
    shared = device_class(f"shared.{DRIVER}", config=[FOREIGN])
    asked = claim("c", request(device_class=f"shared.{DRIVER}"))
    (text,) = found(using(("g", ""), g="c"), asked, there=inventory(shared))
    why = reasons.foreign_config(NVIDIA, DRIVER)
    assert text == f"DeviceClass shared.{DRIVER}: {why}"


def test_nothing_is_said_of_what_may_be_meant_for_others() -> None:
    nic = device_class("nic.example.com", selectors=[{"cel": {"expression": 'device.driver == "nic.example.com"'}}])
    mixed = claim("c", request("a"), request("b", device_class="nic.example.com"), configs=[FOREIGN])
    assert found(using(("g", ""), g="c"), mixed, there=inventory(nic)) == ()
    own = claim("c", request(), configs=[FOREIGN])
    assert found(using(("g", ""), g="c"), own, there=inventory(allowed=(NVIDIA,))) == ()


def test_nothing_is_said_of_what_nobody_can_tell_yet() -> None:
    empty = make_inventory(DRIVER, nodes=[], slices=[], classes=[device_class()])
    first = {"name": "a", "deviceClassName": DRIVER, **cel(next(iter(DEAD)))}
    asked = claim("c", {"name": "r", "firstAvailable": [first, {"name": "b", "deviceClassName": DRIVER}]})
    assert found(using(("g", ""), g="c"), asked, there=empty) == ()
    assert found(using(("g", ""), g="c"), claim("c", request(device_class="gone"), configs=[FOREIGN])) == ()


def test_what_takes_too_long_is_not_reported() -> None:
    assert Allocator().ignored(inventory(), using(g="c"), [claim("c")], is_over=lambda _: True) != ()
    first = {"name": "a", "deviceClassName": DRIVER, **cel("true" + " && true" * 2_000)}
    asked = claim("c", {"name": "r", "firstAvailable": [first, {"name": "b", "deviceClassName": DRIVER}]})
    assert Allocator().ignored(inventory(), using(g="c"), [asked], is_over=lambda _: True) == ()


def test_nothing_is_said_of_requests_that_other_pods_of_the_claim_may_use() -> None:
    asked = claim("c", request("a"), request("b"))
    alone = Allocator().ignored(inventory(), using(("gpus", "a"), gpus="c"), [asked])
    assert alone == ("no container names request b of claim gpus: its devices are taken, and no container sees them",)
    wrong = using(("gpus", "a"), ("gpus", "x"), gpus="c")
    beside = Allocator().ignored(inventory(), wrong, [asked], others={"default/c"})
    assert beside == ("no request x in claim gpus (there: a, b): the container gets nothing by that name",)


def test_two_pods_that_use_one_request_each_of_a_claim_learn_nothing() -> None:
    asked = claim("c", request("a"), request("b"))
    pods = [replace(using(("gpus", name), gpus="c"), metadata=pod(f"p-{name}").metadata) for name in ("a", "b")]

    def told(*there: Pod) -> tuple[str, ...]:
        made = Simulation(
            DRIVER, nodes=[node("n")], slices=[pool_slice("n", MADE)], classes=[device_class()], claims=[asked]
        )
        return next(made.outcomes(there)).ignored

    assert told(*pods) == ()
    assert len(told(pods[0])) == 1
