"""Nodes whose GPUs a pod may not have are asked until one gives what else they have; or not at all."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from dracaena.api.device_id import DeviceId
from dracaena.api.mig import MigDevice
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk.answers import KindAnswers
from support.allocation import DRIVER, blocks, claim, device_class, machine, node, pod, pool_slice, request
from support.inventories import filled
from support.seeds import sampled

GPUS = 3


def of_type(kind: str) -> list[dict[str, dict[str, str]]]:
    return [{"cel": {"expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'}}]


OTHER = "nic.example.com"
CLASSES = (
    device_class(),
    device_class("gpu", selectors=of_type("gpu")),
    device_class("mig", selectors=of_type("mig")),
    device_class("nic", selectors=[{"cel": {"expression": f'device.driver == "{OTHER}"'}}]),
)


def divided(name: str, whole: int) -> ResourceSlice:
    """A node of so many whole GPUs, and two parts of each of the others."""
    made = machine(f"of-{name}", blocks(GPUS, inside="NV4", outside="NV4"), nvlink_count=4, nvlink_generation=3)
    gpus = tuple(replace(gpu, mig_enabled=gpu.index >= whole) for gpu in made.gpus)
    parts = tuple(
        MigDevice(gpu.uuid, f"MIG-{gpu.uuid[4:-1]}{part}", part + 1, 0, "1g.10gb", part, 1)
        for gpu in gpus[whole:]
        for part in range(2)
    )
    published = pool_slice(name, replace(made, gpus=gpus, mig_devices=parts))
    parents = {gpu.uuid for gpu in gpus[whole:]}
    devices = [one for one in published.spec.devices if one.attributes["uuid"].string not in parents]
    return msgspec.structs.replace(published, spec=msgspec.structs.replace(published.spec, devices=devices))


def cluster(
    whole_of: dict[str, int], rng: random.Random | None = None, share: float = 0.0, *, with_nics: bool = False
) -> Inventory:
    """Nodes with so many whole GPUs each; a share of all devices, drawn by chance, is held. `with_nics`: each has a
    device of another driver too, which may be allocated beside ours."""
    slices = {name: divided(name, whole) for name, whole in whole_of.items()}
    nics = [nic_slice(name) for name in whole_of] if with_nics else []
    empty = Inventory(DRIVER, [OTHER] if with_nics else [])
    inventory = filled(empty, nodes=map(node, whole_of), slices=[*slices.values(), *nics], classes=CLASSES)
    for name, page in slices.items():
        taken = (one.name for one in page.spec.devices if rng is not None and rng.random() < share)
        inventory.hold(f"holder of {name}", frozenset(DeviceId(DRIVER, name, device) for device in taken))
    return inventory


def nic_slice(name: str) -> ResourceSlice:
    spec = {
        "driver": OTHER,
        "pool": {"name": f"nics-{name}", "generation": 1, "resourceSliceCount": 1},
        "nodeName": name,
        "devices": [{"name": "nic-0"}],
    }
    return msgspec.convert({"metadata": {"name": f"nics-{name}"}, "spec": spec}, ResourceSlice)


def test_nodes_of_parts_alone_are_asked_by_name_until_one_gives(asked_nodes: list[str]) -> None:
    inventory = cluster(dict.fromkeys("abcdef", 0))
    for name in "ab":
        pool = inventory.pool(name)
        assert pool is not None
        inventory.hold(name, frozenset(DeviceId(DRIVER, name, device) for device in pool.others))
    found = Allocator().allocate(inventory, pod("p"), [claim("c", request(device_class="mig"))])
    assert isinstance(found, Allocation)
    assert (found.node, asked_nodes) == ("c", ["a", "c"]), "b is in the state of a"


def test_a_node_whose_gpus_may_be_given_is_asked_before_all_of_parts(asked_nodes: list[str]) -> None:
    """What it gives counts by its links, and comes before what is not chosen by links."""
    inventory = cluster({"a": 0, "b": 1})
    found = Allocator().allocate(inventory, pod("p"), [claim("c", request(count=3))])
    assert isinstance(found, Allocation)
    assert found.node == "b"


def test_nodes_of_which_a_request_means_no_device_are_not_asked(asked_nodes: list[str]) -> None:
    inventory = cluster({"a": 0, "b": 0})
    asked = claim("c", request("part", device_class="mig"), request("whole", device_class="gpu"))
    assert isinstance(Allocator().allocate(inventory, pod("p"), [asked]), NoFit)
    assert asked_nodes == []


def test_what_a_selector_cannot_tell_counts_as_meant(asked_nodes: list[str]) -> None:
    """So that the mistake in it is met and told."""
    inventory = cluster({"a": 0})
    faulty = [{"cel": {"expression": f'device.attributes["{DRIVER}"].missing == 1'}}]
    found = Allocator().allocate(inventory, pod("p"), [claim("c", request(selectors=faulty))])
    assert isinstance(found, Refused)
    assert asked_nodes == ["a"]


def test_a_part_and_another_drivers_device_are_given_together() -> None:
    inventory = cluster({"a": 0}, with_nics=True)
    asked = claim("c", request("part", device_class="mig"), request("nic", device_class="nic"))
    found = Allocator().allocate(inventory, pod("p"), [asked])
    assert isinstance(found, Allocation)
    assert [one.driver for one in found.claims[0].results] == [DRIVER, OTHER]


def some_claim(rng: random.Random, *, with_nic: bool) -> ResourceClaim:
    kinds = [rng.choice((DRIVER, "gpu", "mig", "mig")) for _ in range(rng.choice((1, 1, 2)))]
    wanted = [request(f"r{number}", rng.choice((1, 1, 2, 4)), kind) for number, kind in enumerate(kinds)]
    if with_nic:
        wanted.append(request("nic", 1, "nic"))
    made = claim("c", *wanted)
    if rng.random() < 0.3:
        made.spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/parentUUID"}]
    return made


def given(inventory: Inventory, asked: ResourceClaim) -> object:
    found = Allocator().allocate(inventory, pod("p"), [asked])
    if not isinstance(found, Allocation):
        return found
    return found.node, [one.device for one in found.claims[0].results], found.choice


@pytest.mark.parametrize("first_seed", sampled(range(0, 4_000, 25), 1, 8))
def test_the_best_node_is_that_of_who_asks_about_every_node(first_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first_seed, first_seed + 100):
        rng = random.Random(seed)
        with_nics = seed % 4 == 0
        wholes = {name: rng.choice((0, 0, 1, 2, GPUS)) for name in "abcd"}
        inventory = cluster(wholes, rng, rng.random(), with_nics=with_nics)
        asked = some_claim(rng, with_nic=with_nics)
        found = given(inventory, asked)
        with monkeypatch.context() as patch:
            patch.setattr(KindAnswers, "may_give_gpus", lambda _: True)
            assert found == given(inventory, asked)
