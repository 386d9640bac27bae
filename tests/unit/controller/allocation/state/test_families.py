from __future__ import annotations

import random

import msgspec

from dracaena.api.objects import Pod
from dracaena.controller.allocation.state.families import Families, Kin
from dracaena.controller.allocation.state.gangs import family_of
from dracaena.controller.allocation.state.inventory import Inventory
from support.allocation import DRIVER
from support.families import GROUP, JOB, SIZE, in_family


def test_the_index_knows_what_the_last_calls_said() -> None:
    """Against a list of all pods, after each of many random changes."""
    chance = random.Random(1)
    inventory, books = Inventory(DRIVER), dict[str, tuple[Pod, str]]()
    for _ in range(3_000):
        labels = chance.choice([JOB, {**JOB, **GROUP}, {}])
        size = {SIZE: str(chance.choice([1, 3, 20]))}
        pod = in_family(labels, name=f"p{chance.randrange(12)}", annotations=size)
        node = chance.choice([None, "a", "b", "c"])
        inventory.place(pod, node)
        books.pop(pod.key, None)
        if node is not None:
            books[pod.key] = pod, node
        asking = in_family(chance.choice([JOB, GROUP]), name=f"p{chance.randrange(15)}", annotations=size)
        siblings: dict[str, int] = {}
        for key, (other, on) in books.items():
            if key != asking.key and family_of(other) == family_of(asking):
                siblings[on] = siblings.get(on, 0) + 1
        known = int(asking.metadata.annotations[SIZE]) if asking.metadata.labels == GROUP else None
        left = None if known is None else max(1, known - sum(siblings.values()))
        assert inventory.kin(asking) == Kin(siblings, left)
    for key, (pod, _) in books.items():
        inventory.place(pod, None)
        assert key == pod.key
    assert not inventory.families._nodes
    assert not inventory.families.placed


def test_families_of_two_namespaces_are_two() -> None:
    families, pod = Families(), in_family(JOB)
    families.place(pod, "a")
    stranger = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace="other"))
    assert families.of(stranger) == Kin({}, None)
