"""Required pod affinity and anti-affinity, read (core/v1, PodAffinityTerm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.packed import unpacked
from dracaena.controller.allocation.nodes.placement.label_selector import (
    LabelSelector,
    UnreadableSelectorError,
    read_label_selector,
)

AFFINITY: Final = "podAffinity"
ANTI_AFFINITY: Final = "podAntiAffinity"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class PodSet:
    """Which pods a term is about."""

    namespaces: frozenset[str]
    """By name, whatever labels these have."""
    namespace_selector: LabelSelector | None
    """Namespaces by their labels, beside those by name; None: no others."""
    selector: LabelSelector | None
    """None selects no pod."""


@dataclass(frozen=True, slots=True)
class PodTerm:
    """One term: pods, and the node label by which nodes are near each other."""

    pods: PodSet
    topology_key: str


def read_terms(affinity: Mapping[str, Any], kind: str, namespace: str) -> tuple[PodTerm, ...]:
    """Read the terms of AFFINITY or ANTI_AFFINITY that must hold, in the order of the document, each once.

    `matchLabelKeys` and `mismatchLabelKeys` are in the selector already: the API server writes them there when the pod
    is created (KEP-3633). Raises UnreadableSelectorError.
    """
    part = affinity.get(kind)
    if part is None:
        return ()
    entries = unpacked(part.get(REQUIRED)) or () if isinstance(part, Mapping) else None
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, Mapping) for entry in entries):
        raise UnreadableSelectorError(f"{kind} is no object with a list of terms")
    return tuple(dict.fromkeys(_term(entry, namespace) for entry in entries))


def _term(entry: Mapping[str, Any], namespace: str) -> PodTerm:
    names = entry.get("namespaces") or ()
    if not isinstance(names, list | tuple):
        raise UnreadableSelectorError("namespaces of an affinity term are no list")
    namespace_selector = read_label_selector(entry.get("namespaceSelector"))
    named = frozenset(map(str, names))
    if not named and namespace_selector is None:
        named = frozenset((namespace,))
    pods = PodSet(named, namespace_selector, read_label_selector(entry.get("labelSelector")))
    return PodTerm(pods, str(entry.get("topologyKey", "")))
