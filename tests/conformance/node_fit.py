"""Questions whether a pod may run on a node, with the answers that kube-scheduler 1.36.3 itself gave.

The questions are ours, made at random; node_fit_reference, a page of Go on the scheduler's own plugins, answers them:

    cd tests/conformance/node_fit_reference && go mod tidy && go build -o /tmp/node-fit .
    /tmp/node-fit < questions.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dracaena.api.objects import Node, ObjectMeta, Pod
from dracaena.api.resource_objects import DeviceClass
from dracaena.controller.allocation.state.inventory import CLASS_RESOURCE

VECTORS = Path(__file__).parent / "node_fit_vectors.jsonl"


@dataclass(frozen=True, slots=True)
class Question:
    """A node, the pods that run there, and one that asks."""

    node: Node
    pods: tuple[Pod, ...]
    pod: Pod
    classes: tuple[DeviceClass, ...]
    """Those that stand for extended resources."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What kube-scheduler says."""

    takes: Mapping[str, int]
    """What the pod takes: cpu in thousandths, all else in ones."""
    used: Mapping[str, int]
    """What the other pods take."""
    room: Mapping[str, int]
    """What the node has."""
    lacking: frozenset[str]
    """Resources of which too little is left."""
    ports: bool
    """Whether the host ports are free."""
    affinity: bool
    cordoned: bool
    untolerated: bool
    """Whether some taint keeps the pod away."""


def read_vectors(path: Path = VECTORS) -> Iterator[tuple[Question, Answer]]:
    """Yield all questions with their answers."""
    for line in path.read_text().splitlines():
        document = msgspec.json.decode(line)
        yield read_question(document["question"]), read_answer(document["answer"])


def read_question(document: Mapping[str, Any]) -> Question:
    """Read a question as the reference gets it."""
    pods = tuple(msgspec.convert(pod, Pod) for pod in document.get("pods", ()))
    return Question(
        node=msgspec.convert(document["node"], Node),
        pods=pods,
        pod=msgspec.convert(document["pod"], Pod),
        classes=tuple(map(_class_for, document.get("classes", ()))),
    )


def read_answer(document: Mapping[str, Any]) -> Answer:
    """Read an answer as the reference gives it."""
    takes, used, room = ({k: v for k, v in document[part].items() if v} for part in ("takes", "used", "room"))
    # The reference marks with ! what even an empty node lacks.
    lacking = frozenset(name.rstrip("!") for name in document["short"])
    facts = (document[name] for name in ("ports", "affinity", "cordoned", "untolerated"))
    return Answer(takes, used, room, lacking, *facts)


def _class_for(resource: str) -> DeviceClass:
    if resource.startswith(CLASS_RESOURCE):
        return DeviceClass(ObjectMeta(name=resource.removeprefix(CLASS_RESOURCE)))
    return DeviceClass(ObjectMeta(name="class"), {"extendedResourceName": resource})
