"""kube-scheduler's own answers (conformance.node_fit), asked of what decides about nodes here."""

from __future__ import annotations

import pytest
from conformance.node_fit import Answer, Question, read_vectors

from dracaena.api.objects import Pod
from dracaena.controller.allocation.nodes.node_filter import NodeFilter
from dracaena.controller.allocation.nodes.pod_resources import PODS, node_allocatable, pod_resources
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.cache.pods import kept_pod
from support.allocation import DRIVER
from support.node_fit import unfit_reason

VECTORS = tuple(read_vectors())


def taken(pod: Pod) -> dict[str, int]:
    return {name: amount for name, amount in pod_resources(pod).amounts if name != PODS}


def inventory_of(question: Question) -> Inventory:
    inventory = Inventory(DRIVER)
    for item in question.classes:
        inventory.set_class(item)
    inventory.set_node(question.node)
    for pod in question.pods:
        inventory.resources.place_pod(pod.key, question.node.metadata.name, pod_resources(pod))
    inventory.check()
    return inventory


@pytest.mark.parametrize(("question", "answer"), VECTORS)
def test_amounts_are_those_of_the_scheduler(question: Question, answer: Answer) -> None:
    assert taken(question.pod) == answer.takes
    assert node_allocatable(question.node) == answer.room
    used: dict[str, int] = {}
    for pod in question.pods:
        for name, amount in taken(pod).items():
            used[name] = used.get(name, 0) + amount
    assert used == answer.used


@pytest.mark.parametrize(("question", "answer"), VECTORS)
def test_what_is_kept_of_a_pod_takes_the_same(question: Question, answer: Answer) -> None:
    for pod in (question.pod, *question.pods):
        assert pod_resources(kept_pod(pod)) == pod_resources(pod)
    assert taken(kept_pod(question.pod)) == answer.takes


@pytest.mark.parametrize(("question", "answer"), VECTORS)
def test_a_node_is_refused_where_the_scheduler_refuses_it(question: Question, answer: Answer) -> None:
    refused = not answer.affinity or answer.cordoned or answer.untolerated
    assert (unfit_reason(question.pod, question.node) is not None) is refused
    inventory = inventory_of(question)
    nodes = NodeFilter(question.pod, [], resources=inventory.resource_demand(question.pod))
    indexed = inventory.nodes.get(question.node.metadata.name)
    shortage = nodes.shortage(indexed)
    assert (shortage is not None) is bool(answer.lacking or not answer.ports)
    assert (nodes.reason(indexed) is not None) is bool(refused or answer.lacking or not answer.ports)
    with_room = nodes.with_room()
    assert with_room is None or question.node.metadata.name in with_room or answer.lacking
    if shortage is not None and shortage.startswith("with too little free"):
        assert all(name in shortage for name in answer.lacking - {PODS})


def test_the_vectors_hold_every_kind_of_answer() -> None:
    answers = [answer for _, answer in VECTORS]
    assert len(answers) > 80
    for fact in ("ports", "affinity", "cordoned", "untolerated"):
        assert {getattr(answer, fact) for answer in answers} == {True, False}
    assert {bool(answer.lacking) for answer in answers} == {True, False}
