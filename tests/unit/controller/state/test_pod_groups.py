"""Which pods of a group wait, and how many there are: what a look at everybody says, after any sequence of changes."""

from __future__ import annotations

import random

import msgspec
import pytest

from dracaena.api.gang_label import GANG_LABEL
from dracaena.api.objects import ENDED, Pod
from dracaena.controller.allocation.state.gangs import Family, group_of
from dracaena.controller.lifecycle.pod_record import is_unbound
from dracaena.controller.state.pod_groups import PodGroups
from dracaena.controller.state.records import Records
from support.allocation import claim, request
from support.group_world import member
from support.reconciling import TWO, Bench

STEPS = 60

GROUPS = tuple(Family("default", "PodGroup", name) for name in ("g0", "g1"))


def looked_at(records: Records, group: Family) -> set[str]:
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
        for each in GROUPS:
            assert set(records.groups.waiting(each)) == looked_at(records, each)
        unbound = {group_of(pod) for pod in records.pods()}
        unbound -= {group_of(pod) for pod in records.pods() if pod.spec.node_name}
        assert set(records.groups.unbound()) == unbound


def changed(pod: Pod, *, node: str = "", phase: str = "", label: str = "", claims: bool = True) -> Pod:
    """A later state of a pod."""
    labels = {GANG_LABEL: label} if label else {}
    replace = msgspec.structs.replace
    return replace(
        pod,
        metadata=replace(pod.metadata, labels=labels),
        spec=replace(pod.spec, node_name=node, resource_claims=pod.spec.resource_claims if claims else []),
        status=replace(pod.status, phase=phase),
    )


@pytest.mark.parametrize("seed", range(20))
def test_how_many_there_are_and_what_their_labels_say_is_what_a_look_at_all_says(seed: int) -> None:
    rng = random.Random(seed)
    groups, pods = PodGroups(lambda pod: True), dict[str, Pod]()
    for _ in range(STEPS):
        key = f"default/p{rng.randrange(6)}"
        if rng.random() < 0.2:
            pods.pop(key, None)
            groups.change(key, None)
        else:
            pod = member(key.partition("/")[2], rng.choice(["g0", "g1", ""]), 1)
            pods[key] = changed(
                pod,
                node=rng.choice(["", "", "n"]),
                phase=rng.choice(["", "Pending", "Failed", "Succeeded"]),
                label=rng.choice(["", "3", "7", "0"]),
                claims=rng.random() < 0.7,
            )
            groups.change(key, pods[key])
        for each in GROUPS:
            of_group = [pod for pod in pods.values() if group_of(pod) == each]
            staying = [pod for pod in of_group if pod.status.phase not in ENDED]
            sizes = [int(pod.metadata.labels.get(GANG_LABEL, 0)) for pod in staying]
            assert groups.count(each) == len(staying)
            assert groups.labelled_size(each) == (max(sizes, default=0) or None)
            with_claims = [pod for pod in of_group if pod.spec.resource_claims and pod.status.phase != "Failed"]
            assert groups.has_bound(each) == any(pod.spec.node_name for pod in with_claims)
            assert groups.pods(each) == tuple(sorted(pod.key for pod in with_claims))
    for key in list(pods):
        groups.change(key, None)
    assert (groups._groups, groups._group_of) == ({}, {})


def test_a_group_that_all_pods_have_left_leaves_nothing() -> None:
    groups = PodGroups(lambda pod: True)
    free = member("p", "g", 1)
    groups.change(free.key, free)
    groups.change(free.key, changed(free, node="n"))
    assert (groups.unbound(), tuple(groups.waiting(Family("default", "PodGroup", "g")))) == ((), ())
    groups.change(free.key, None)
    assert (groups._groups, groups._group_of) == ({}, {})
