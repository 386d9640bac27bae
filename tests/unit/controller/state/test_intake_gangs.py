"""Pods, labels, PodGroups and the list of them change in any order, each as often as its author likes: no pod of a gang
that cannot start gets devices, and none that may start sleeps on.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from dracaena.api.gang_label import GANG_LABEL
from dracaena.api.objects import ENDED, OwnerReference, Pod
from dracaena.api.workload_objects import PodGroup
from dracaena.controller.allocation.state.gangs import Sizes
from dracaena.controller.state.group_turns import GroupTurns
from dracaena.controller.state.intake import Intake
from dracaena.controller.state.pod_groups import PodGroups
from support.allocation import claim, request
from support.group_world import EIGHT, member, pod_group
from support.reconciling import Bench
from support.seeds import in_tiers

STEPS = 80
PODS = 7
"""Fewer than there are GPUs, so that only a gang keeps a pod from them."""

FAULT_SEEDS = 60

Author = tuple[str, str]
"""A PodGroup, or the controller of pods with the label."""


class GangChanges:
    """A bench, what its authors did, and a slow look at all of it."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._bench = Bench(n=EIGHT)
        self._groups: dict[str, PodGroup] = {}
        self._is_read: bool | None = None
        self._uids = 0

    def run(self) -> str | None:
        """Do STEPS things; return what was wrong after one of them."""
        had: set[str] = set()
        for step in range(STEPS):
            done = self._do()
            self._bench.run()
            have = {key for key in self._waiting() if self._has_devices(key)}
            for key in sorted(self._waiting()):
                stuck = self._is_stuck(self._bench.api.pods[key])
                if stuck and key in have - had:
                    return f"step {step}: {done}: {key} of a gang that cannot start got devices"
                if not stuck and key not in have:
                    return f"step {step}: {done}: {key} may start and sleeps"
            had = have
        return None

    def _do(self) -> str:
        name, group = f"p{self._rng.randrange(PODS)}", self._rng.choice("ab")
        key = f"default/{name}"
        known = self._bench.api.pods.get(key)
        action = self._rng.randrange(8)
        if known is None and action < 5:
            return self._create(name, group)
        if known is not None and action == 0:
            self._remove(key)
        elif known is not None and action == 1 and self._has_devices(key):
            spec = msgspec.structs.replace(known.spec, node_name="n")
            self._bench.add(msgspec.structs.replace(known, spec=spec))
        elif known is not None and action == 2:
            self._label(known)
        elif action in (3, 4):
            self._change_group(group)
        elif action == 5:
            self._is_read = self._rng.choice([None, False, True, True])
            self._bench.cluster.intake.workloads_listed("PodGroup", is_read=self._is_read)
        return f"action {action} of {name} and {group}"

    def _create(self, name: str, group: str) -> str:
        self._uids += 1
        labelled = self._rng.random() < 0.4
        pod = member(name, "" if labelled else group, 1)
        replace = msgspec.structs.replace
        owner = OwnerReference(f"uid-of-{group}", "Job", group, "batch/v1", controller=True)
        labels = {GANG_LABEL: str(self._rng.randint(1, 4))} if labelled else {}
        meta = replace(pod.metadata, uid=f"{name}-{self._uids}", labels=labels, owner_references=[owner])
        pod = replace(pod, metadata=meta)
        if self._rng.random() < 0.2:
            pod = replace(pod, spec=replace(pod.spec, resource_claims=[]))
        else:
            self._bench.add(claim(name, request()))
        self._bench.add(pod)
        return f"{name} of {group}, labels {labels}"

    def _remove(self, key: str) -> None:
        self._bench.remove_pod(key)
        stored = self._bench.api.claims.pop(key, None)
        if stored is not None:
            self._bench.claim_changed(stored, None)

    def _label(self, pod: Pod) -> None:
        label = self._rng.choice(["1", "2", "3", "none", ""])
        labels = {GANG_LABEL: label} if label else {}
        meta = msgspec.structs.replace(pod.metadata, labels=labels)
        self._bench.add(msgspec.structs.replace(pod, metadata=meta))

    def _change_group(self, name: str) -> None:
        old, size = self._groups.get(name), self._rng.choice([None, 1, 2, 3, 4])
        uid = self._rng.choice(["1", "2"])
        new = None if old is not None and self._rng.random() < 0.3 else pod_group(name, "default", size, uid)
        self._bench.cluster.intake.workload_changed(old, new)
        self._groups.pop(name, None)
        if new is not None:
            self._groups[name] = new

    def _waiting(self) -> set[str]:
        """Pods that want devices and are not bound."""
        pods = self._bench.api.pods.items()
        return {key for key, pod in pods if pod.spec.resource_claims and not pod.spec.node_name}

    def _has_devices(self, key: str) -> bool:
        stored = self._bench.api.claims.get(key)
        return stored is not None and stored.status.allocation is not None

    def _is_stuck(self, pod: Pod) -> bool:
        author = author_of(pod)
        if author is None:
            return False
        pods = [one for one in self._bench.api.pods.values() if author_of(one) == author]
        if any(one.spec.node_name and one.spec.resource_claims for one in pods):
            return False
        group = self._groups.get(author[1]) if author[0] == "PodGroup" else None
        labels = [int(size) for one in pods if (size := label_of(one))]
        if group is not None:
            return group.size is not None and len(pods) < group.size
        if labels:
            return len(pods) < max(labels)
        return author[0] == "PodGroup" and self._is_read is not None


def label_of(pod: Pod) -> str:
    text = pod.metadata.labels.get(GANG_LABEL, "")
    assert pod.status.phase not in ENDED
    return text if text in "1234" else ""


def author_of(pod: Pod) -> Author | None:
    group = pod.spec.scheduling_group
    if group is not None:
        return "PodGroup", group.pod_group_name
    return ("Job", pod.metadata.owner_references[0].name) if label_of(pod) else None


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", in_tiers(range(25), range(25, 400), range(400, 8_000)))
def test_no_pod_of_a_gang_that_cannot_start_is_served_and_no_other_sleeps(seeds: range) -> None:
    assert [(seed, wrong) for seed in seeds if (wrong := GangChanges(seed).run()) is not None] == []


FAULTS: Mapping[str, tuple[type, str, Callable[..., Any]]] = {
    "nobody-is-woken": (Intake, "_completing", lambda self, groups: contextlib.nullcontext()),
    "nothing-stops-a-gang": (GroupTurns, "refusal", lambda self, pod, claims: None),
    "a-bound-pod-proves-nothing": (PodGroups, "has_bound", lambda self, group: False),
    "any-label-counts": (
        PodGroups,
        "labelled_size",
        lambda self, group: min(self._of(group).labels, default=0) or None,
    ),
    "what-is-not-there-stops-nobody": (Sizes, "not_there", lambda self, family: None),
    "objects-are-never-forgotten": (Sizes, "take_out", lambda self, item: None),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    assert any(GangChanges(seed).run() is not None for seed in range(FAULT_SEEDS))
