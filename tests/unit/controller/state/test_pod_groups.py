"""Which pods of a group wait is what a look at everybody says, after any sequence of changes."""

from __future__ import annotations

import random

import msgspec
import pytest

from dracaena.api.podclaims import group_of
from dracaena.controller.lifecycle.pod_record import is_unbound
from dracaena.controller.state.pod_groups import PodGroups
from dracaena.controller.state.records import Records
from support.allocation import claim, request
from support.group_world import member
from support.reconciling import TWO, Bench

STEPS = 60


def looked_at(records: Records, group: str) -> set[str]:
    """The pods of a group that wait, found without the index."""
    found = set()
    for pod in records.pods():
        claims = [records.claim(one.key or "") for one in records.named_by(pod)]
        has_all = all(one is not None and (one.is_held or one.share is not None) for one in claims)
        if group_of(pod) == group and is_unbound(pod) and not pod.metadata.deletion_timestamp and not has_all:
            found.add(pod.key)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_who_waits_is_what_a_look_at_everybody_says(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(n0=TWO, n1=TWO)
    records = bench.cluster._state.records
    for _ in range(STEPS):
        name, group = f"p{rng.randrange(5)}", f"g{rng.randrange(2)}"
        key, action = f"default/{name}", rng.randrange(6)
        if action == 0 and key not in bench.api.pods:
            bench.add(member(name, group, 1))
        elif action == 1 and key not in bench.api.claims:
            bench.add(claim(name, request()))
        elif action == 2 and key in bench.api.pods:
            bench.remove_pod(key)
        elif action == 3 and key in bench.api.claims and bench.held(name) is not None and key in bench.api.pods:
            bench.bind(name, bench.on_node(name) or "")
        elif action == 4 and key in bench.api.claims:
            old = bench.api.claims.pop(key)
            bench.claim_changed(old, None)
        elif bench.queue._ready:
            bench.step()
        for each in ("default/g0", "default/g1"):
            assert set(records.groups.waiting(each)) == looked_at(records, each)
        unbound = {group_of(pod) for pod in records.pods()}
        unbound -= {group_of(pod) for pod in records.pods() if pod.spec.node_name}
        assert set(records.groups.unbound()) == unbound


def test_a_group_that_all_pods_have_left_leaves_nothing() -> None:
    groups = PodGroups(lambda pod: True)
    free = member("p", "g", 1)
    bound = msgspec.structs.replace(free, spec=msgspec.structs.replace(free.spec, node_name="n"))
    groups.change(None, free)
    groups.change(free, bound)
    assert (groups.unbound(), tuple(groups.waiting("default/g"))) == ((), ())
    groups.change(bound, None)
    assert (groups._pods, groups._bound_counts, groups._waiting) == ({}, {}, {})
