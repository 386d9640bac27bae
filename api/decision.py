"""The `<driver>/decision` annotation of a claim: what was chosen for it and why, as JSON of at most 2 KiB.

Written in the same PATCH as the finalizer, so it costs no request; read by `dracaena explain` long after the Events
are gone. An observation: no decision is ever made from it. (That the annotation is there tells that the allocation
is one of ours.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from dracaena.api.errors import BadInputError

VERSION = 1
"""Raised when a field changes its meaning; new fields alone do not raise it."""

MAX_BYTES = 2048
"""Annotations of one object share 256 KiB; 2 KiB a claim keep thousands of claims small in every watch cache."""


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best choice that was not taken."""

    node: str
    devices: tuple[str, ...]
    links: str
    lost_by: str
    """The first part of the order in which it was worse, for example `damage`."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a claim holds what it holds. All of a pod's claims are decided together and share the score."""

    node: str
    devices: tuple[str, ...]
    """Device names that this claim got, in the order of its results. Empty when cut."""
    links: str
    """How the pod's GPUs are linked, in words, for example `6 pairs NV12`."""
    score: tuple[tuple[str, int], ...]
    """Named parts in the order in which they count."""
    pod_devices: int
    """GPUs that all claims of the pod got in this decision."""
    runner_up: RunnerUp | None = None
    cut: bool = False
    """Whether something was left out to stay below MAX_BYTES."""


class _RunnerUp(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    node: str
    links: str
    lost_by: str
    devices: tuple[str, ...] = ()


class _Document(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    v: int
    node: str
    devices: tuple[str, ...]
    links: str
    score: tuple[tuple[str, int], ...]
    pod_devices: int
    runner_up: _RunnerUp | None = None
    cut: bool = False


def encode_decision(decision: Decision) -> str:
    """Return the annotation's value, at most MAX_BYTES of UTF-8.

    When it would be longer it is cut in this order: the runner-up's devices, the runner-up, the devices, and at
    last every text (64 characters, names of score parts 16); `cut` then says so.
    decode_decision gives back what was written.
    """
    for candidate in _ever_shorter(decision):
        text = msgspec.json.encode(_document(candidate))
        if len(text) <= MAX_BYTES:
            return text.decode()
    raise AssertionError("a decision without devices and with short texts is below 2 KiB")


def decode_decision(text: str) -> Decision:
    """Read an annotation. Raises BadInputError when it is no decision or of a later version."""
    try:
        document = msgspec.json.decode(text, type=_Document)
    except msgspec.DecodeError as error:
        raise BadInputError(f"the decision annotation does not decode: {error}") from error
    if document.v != VERSION:
        raise BadInputError(f"the decision annotation has version {document.v}, expected {VERSION}")
    second = document.runner_up
    return Decision(
        node=document.node,
        devices=document.devices,
        links=document.links,
        score=document.score,
        pod_devices=document.pod_devices,
        runner_up=RunnerUp(second.node, second.devices, second.links, second.lost_by) if second else None,
        cut=document.cut,
    )


def _document(decision: Decision) -> _Document:
    second = decision.runner_up
    return _Document(
        v=VERSION,
        node=decision.node,
        devices=decision.devices,
        links=decision.links,
        score=decision.score,
        pod_devices=decision.pod_devices,
        runner_up=_RunnerUp(second.node, second.links, second.lost_by, second.devices) if second else None,
        cut=decision.cut,
    )


def _ever_shorter(decision: Decision) -> Iterator[Decision]:
    yield decision
    shorter = replace(decision, cut=True)
    if shorter.runner_up is not None:
        yield replace(shorter, runner_up=replace(shorter.runner_up, devices=()))
    shorter = replace(shorter, runner_up=None)
    yield shorter
    shorter = replace(shorter, devices=())
    yield shorter
    # Control characters take six bytes each in JSON, and still this is below the limit.
    score = tuple((name[:16], value) for name, value in shorter.score[:8])
    yield replace(shorter, node=shorter.node[:64], links=shorter.links[:64], score=score)
