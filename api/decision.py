"""What was chosen for a claim and why: an opaque entry of `status.allocation.devices.config`, at most 2 KiB of JSON.

It is written with the allocation, cannot be changed as long as that lives, and goes with it. Users cannot write the
status of claims, so an allocation with such an entry is the controller's own. What comes from a claim's spec has
another `source` and does not count.

The entry names a driver of its own (api.names.decision_driver): the plugin refuses kinds that it does not know under
the real driver's name. kube-scheduler and kubelet do not look at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dracaena.api.config.v1alpha1.types import API_VERSION
from dracaena.api.errors import BadInputError
from dracaena.api.go_json import encode_as_go
from dracaena.api.links import LinkLevel
from dracaena.api.names import decision_driver
from dracaena.api.resource_objects import ResourceClaim

KIND: Final = "Decision"

FROM_CLASS: Final = "FromClass"
"""The `source` of the entry. `FromClaim` would be what a user wrote."""

MAX_BYTES = 2048
"""The API server allows 10 KiB; at 2 KiB per claim, thousands of claims stay small in every watch cache."""

Parts = tuple[tuple[str, int], ...]
"""Named figures in the order in which they count. A name that ends in `_gb_s` is in GB/s, one in `_level` is a
LinkLevel (0 where NVLinks do it, or for one GPU), one in `_milligpus` is in thousandths of a GPU,
`bandwidth_percent_of_ideal` is in percent; others count."""

_GB_S: Final = "_gb_s"
_MILLIGPUS: Final = "_milligpus"
_LEVEL: Final = "_level"
_LEVELS: Final = frozenset(LinkLevel)

_WORDS: Final = {
    "net_gain_gpus": "net gain in GPUs",
    "loss_milligpus": "loss of other pods",
    "bandwidth_percent_of_ideal": "share of the ideal bandwidth",
    "ring_gb_s": "slowest hop of the best ring",
    "damage_8_gb_s": "damage to groups of 8",
    "damage_4_gb_s": "damage to groups of 4",
    "damage_2_gb_s": "damage to groups of 2",
    "damage_ring_gb_s": "damage to rings",
    "damage_levels": "damage in levels",
    "numa_nodes": "NUMA nodes",
    "nic_levels": "levels to NICs",
    "pair_sum_gb_s": "sum of pairs",
    "free_gpus": "free GPUs",
    "sibling_steps": "distance to its family",
    "sibling_pods": "pods of its family nearby",
    "room_steps": "distance within which its family has room",
    "room_pods": "room there beyond that",
    "near_room_pods": "room nearby for more pods of its family",
}
"""Words for the parts whose names do not read well."""


_GROUP_OF: Final = {f"damage_{size}_gb_s": size for size in (8, 4, 2)}
"""For each part that measures damage to groups of free GPUs, the size of the pods that these groups are kept for."""

_ORDER_ALONE: Final = frozenset(("node_name", "ordinals"))
"""What decides between choices that are equal in all parts."""


class RunnerUp(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The best choice that was not taken."""

    node: str
    links: str
    lost_by: str
    """The first part of the order in which it was worse, for example `bandwidth_gb_s`; `node_name` or `ordinals` when
    all parts are equal."""
    devices: tuple[str, ...] = ()
    score: Parts = ()


class Decision(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Why a claim holds what it holds. All of a pod's claims are decided together and share the score."""

    node: str
    links: str
    """How the pod's GPUs are linked, in words, for example `6 pairs NV12`."""
    score: Parts
    pod_devices: int
    """GPUs that the pod had after this decision, all its claims together."""
    runner_up: RunnerUp | None = None
    others: tuple[tuple[str, int], ...] = ()
    """Why the other nodes were not taken, in words that follow a count → how many. Most frequent first."""
    cut: bool = False
    """Whether something was left out to stay below MAX_BYTES."""


class _Typed(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str


def decision_config(decision: Decision, driver: str) -> dict[str, Any]:
    """Return the entry for `status.allocation.devices.config`. No `requests`: it is about the whole claim."""
    opaque = {"driver": decision_driver(driver), "parameters": encode_decision(decision)}
    return {"source": FROM_CLASS, "opaque": opaque}


def decision_parameters(claim: ResourceClaim, driver: str) -> msgspec.Raw | None:
    """Return the parameters of the decision behind a claim's allocation, which may be of a later version; None when
    there is no allocation, or it is not the controller's. Of several the last counts: the others are a class's."""
    allocation = claim.status.allocation
    for entry in reversed(allocation.devices.config) if allocation is not None else ():
        opaque = entry.opaque
        if entry.source == FROM_CLASS and opaque is not None and opaque.driver == decision_driver(driver):
            return opaque.parameters
    return None


def read_decision(claim: ResourceClaim, driver: str) -> Decision | None:
    """Return the decision behind a claim's allocation; None as in decision_parameters. Raises BadInputError if it
    cannot be read, because a later version wrote it."""
    parameters = decision_parameters(claim, driver)
    return None if parameters is None else decode_decision(parameters)


def encode_decision(decision: Decision) -> msgspec.Raw:
    """Return the parameters, at most MAX_BYTES, as kube-apiserver stores them: otherwise each later patch of the claim
    would count as a change of its allocation.

    If they would be longer, they are cut in this order: the runner-up's devices, the reasons of the others, the
    runner-up's score, the runner-up, and finally every text (64 characters, 8 parts with names of 16); `cut` then says
    so. decode_decision returns what was written.
    """
    for candidate in _ever_shorter(decision):
        text = encode_as_go(_typed(candidate))
        if len(text) <= MAX_BYTES:
            return msgspec.Raw(text)
    raise AssertionError("a decision with short texts is below 2 KiB")


def decode_decision(parameters: msgspec.Raw | bytes) -> Decision:
    """Read the parameters. Raises BadInputError if they are no decision, or of a later version."""
    try:
        typed = msgspec.json.decode(parameters, type=_Typed)
        if (typed.api_version, typed.kind) == (API_VERSION, KIND):
            return msgspec.json.decode(parameters, type=Decision)
    except msgspec.DecodeError as error:
        raise BadInputError(f"the decision in status.allocation does not decode: {error}") from error
    raise BadInputError(
        f"the decision in status.allocation is a {typed.kind} of {typed.api_version}, expected {KIND} of {API_VERSION}"
    )


def decision_document(decision: Decision) -> dict[str, Any]:
    """Return the decision for programs, whole: the fields of the parameters, scores and reasons as objects."""
    document: dict[str, Any] = msgspec.to_builtins(decision)
    document["score"] = dict(decision.score)
    if decision.runner_up is not None:
        document["runnerUp"]["score"] = dict(decision.runner_up.score)
    document["others"] = dict(decision.others)
    return document


def describe(decision: Decision, *, wide: bool = False) -> str:
    """Describe a decision for people, in one line: what was chosen, what came second and by which part of the score it
    lost, what became of the others. `wide`: with all parts of the score.

    Events and the command show the same line, not wide.
    """
    said = _chosen(decision, decision.score if wide else _deciding_part(decision))
    second = decision.runner_up
    if second is not None:
        said += f"; {_kept_whole(decision, second) or f'next best: {_where(second)}, {_lost(second)}'}"
    if decision.others:
        said += "; other nodes: " + ", ".join(f"{count} {text}" for text, count in decision.others)
    return said


def describe_one_gpu(decision: Decision) -> str:
    """Describe the choice of one GPU, which has no links to compare, briefly: where it is, and what decided."""
    second = decision.runner_up
    kept = "" if second is None else _kept_whole(decision, second)
    return "; ".join(filter(None, (_chosen(decision, _deciding_part(decision)), kept)))


def _chosen(decision: Decision, shown: Parts) -> str:
    said = f"{decision.pod_devices} of the GPUs of {decision.node}: {decision.links}"
    return f"{said} ({parts_in_words(shown)})" if shown else said


def parts_in_words(parts: Iterable[tuple[str, int]]) -> str:
    """Return the parts of a score with their units: `bandwidth: 300 GB/s, NUMA nodes: 1`. Levels of 0 are left out."""
    shown = ((name, value) for name, value in parts if value or not name.endswith(_LEVEL))
    return ", ".join(f"{part_in_words(name)}: {value_in_words(name, value)}" for name, value in shown)


def part_in_words(name: str) -> str:
    """Return the words for a part, without its unit: `bandwidth` for `bandwidth_gb_s`."""
    return _WORDS.get(name) or name.removesuffix(_GB_S).replace("_", " ")


def value_in_words(name: str, value: int) -> str:
    """Return the value of a part with its unit; a link level by its name."""
    if name.endswith(_GB_S):
        return f"{value} GB/s"
    if name.endswith(_MILLIGPUS):
        return f"{value / 1_000:g} GPUs"
    if "_percent_" in name:
        return f"{value} %"
    return LinkLevel(value).name if name.endswith(_LEVEL) and value in _LEVELS else str(value)


def _deciding_part(decision: Decision) -> Parts:
    """Return the part in which the next best was worse, with the chosen set's value; damage has its own words."""
    lost_by = decision.runner_up.lost_by if decision.runner_up is not None else ""
    return tuple((name, value) for name, value in decision.score if name == lost_by and name not in _GROUP_OF)


def _kept_whole(decision: Decision, second: RunnerUp) -> str:
    """Say what is kept for which later pods; "" if the damage to groups did not decide."""
    mine, theirs = dict(decision.score).get(second.lost_by), dict(second.score).get(second.lost_by)
    size = _GROUP_OF.get(second.lost_by)
    if size is None or mine is None or theirs is None:
        return ""
    kept = "kept whole" if mine == 0 else f"least lost ({mine} GB/s)"
    return f"{kept} for pods of {size}: next best, {_where(second)}, would have cost them {theirs} GB/s"


def _where(second: RunnerUp) -> str:
    return f"{second.links} on {second.node}"


def _lost(second: RunnerUp) -> str:
    if second.lost_by in _ORDER_ALONE:
        return f"equal but for the order of its {part_in_words(second.lost_by)}"
    value = dict(second.score).get(second.lost_by)
    worse = f"worse in {part_in_words(second.lost_by)}"
    return worse if value is None else f"{worse}: {value_in_words(second.lost_by, value)}"


def _typed(decision: Decision) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, **msgspec.to_builtins(decision)}


def _ever_shorter(decision: Decision) -> Iterator[Decision]:
    yield decision
    shorter = replace(decision, cut=True)
    second = shorter.runner_up
    if second is not None:
        shorter = replace(shorter, runner_up=replace(second, devices=()))
        yield shorter
    shorter = replace(shorter, others=())
    yield shorter
    if second is not None:
        yield replace(shorter, runner_up=replace(second, devices=(), score=()))
    shorter = replace(shorter, runner_up=None)
    yield shorter
    # Even if each character takes six bytes in JSON, as control characters do, this is below the limit.
    score = tuple((name[:16], value) for name, value in shorter.score[:8])
    yield replace(shorter, node=shorter.node[:64], links=shorter.links[:64], score=score)
