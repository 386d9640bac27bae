"""Where a pod may run, as core/v1 says of the node itself: from the spec of the pod and the node as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]


def tolerated(taint: Json, tolerations: Iterable[Json]) -> bool:
    """Whether some toleration covers a taint (core/v1)."""
    return any(
        one.get("effect", "") in ("", taint.get("effect", ""))
        and one.get("key", "") in ("", taint["key"])
        and (
            one.get("operator", "") == "Exists"
            or (one.get("operator", "") in ("", "Equal") and one.get("value", "") == taint.get("value", ""))
        )
        for one in tolerations
    )


def is_cordoned(spec: Json, node: Json) -> bool:
    """Whether a node's cordon keeps a pod with this spec off."""
    cordon = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
    tolerations = spec.get("tolerations") or ()
    return bool(node.get("spec", {}).get("unschedulable")) and not tolerated(cordon, tolerations)


def untolerated(spec: Json, node: Json) -> list[str]:
    """The keys of a node's taints that keep a pod with this spec off."""
    tolerations = spec.get("tolerations") or ()
    taints = node.get("spec", {}).get("taints") or ()
    blocking = (one for one in taints if one.get("effect") in ("NoSchedule", "NoExecute"))
    return [one["key"] for one in blocking if not tolerated(one, tolerations)]


def lacks_labels(spec: Json, node: Json) -> bool:
    """Whether a node does not match the nodeSelector of a pod with this spec."""
    wanted, labels = spec.get("nodeSelector") or {}, node["metadata"].get("labels") or {}
    return any(labels.get(key) != value for key, value in wanted.items())


def affinity_of(spec: Json) -> Json | None:
    """What the node affinity of a pod with this spec requires; None: nothing."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    if not isinstance(affinity, Mapping):
        return None if affinity is None else {}
    return affinity.get("requiredDuringSchedulingIgnoredDuringExecution")


def selects(selector: Json | None, node: Json) -> bool:
    """Whether a NodeSelector selects a node."""
    terms = (selector or {}).get("nodeSelectorTerms") or ()
    return any(_term(term, node["metadata"]) for term in terms)


def _term(term: Json, meta: Json) -> bool:
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not labels and not fields:
        return False
    if any(len(one.get("values") or ()) != 1 for one in fields):  # the API takes one value of a field
        return False
    has = meta.get("labels") or {}
    return all(_rule(one, has.get(one["key"])) for one in labels) and all(
        _rule(one, meta["name"] if one["key"] == "metadata.name" else "") for one in fields
    )


def _rule(rule: Json, value: str | None) -> bool:
    values: Sequence[str] = rule.get("values") or ()
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    try:
        found, wanted = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return found > wanted if rule["operator"] == "Gt" else found < wanted
