"""Which nodes match what a pod says about nodes: name, selector, affinity, cordon, taints.

Kubernetes' own rules (core/v1, NodeSelector and Taint, as kube-scheduler 1.36 reads them). kube-scheduler decides in
the end; this keeps us from pinning a pod to a node that it will refuse. A selector is read first, then a node is
compared with everything that a pod says. How much of a node is left: node_resources. Pod affinity, spread and volumes:
placement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.device_taints import keeping_off
from dracaena.api.limits import DNS_LABEL_BYTES, DNS_SUBDOMAIN_BYTES
from dracaena.api.objects import Node, Pod, Taint, Toleration
from dracaena.api.packed import unpacked
from dracaena.controller.allocation.effort import TERM_READING_STEPS, Effort, Work
from dracaena.controller.allocation.nodes.selector_requirement import SelectorRequirement, integer

NAME_FIELD: Final = "metadata.name"
_LABEL_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})
_FIELD_OPERATORS: Final = frozenset({"In", "NotIn"})
_NAME: Final = re.compile(rf"(?=.{{1,{DNS_LABEL_BYTES}}}\Z)[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_DOMAIN: Final = re.compile(
    rf"(?=.{{1,{DNS_SUBDOMAIN_BYTES}}}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Term:
    """A conjunction of requirements, of which there is at least one."""

    labels: tuple[SelectorRequirement, ...]
    fields: tuple[SelectorRequirement, ...]

    def matches(self, node: Node) -> bool:
        """Return whether a node meets all requirements."""
        labels = node.metadata.labels
        # metadata.name is the only field that can select nodes; any other is empty.
        return all(rule.matches(labels.get(rule.key)) for rule in self.labels) and all(
            rule.matches(node.metadata.name if rule.key == NAME_FIELD else "") for rule in self.fields
        )


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """A disjunction of terms; without a term it matches nothing."""

    terms: tuple[Term, ...]
    problems: tuple[str, ...] = ()
    """What cannot be read in the document."""

    def matches(self, node: Node) -> bool:
        """Return whether a node is selected."""
        return any(term.matches(node) for term in self.terms)


def read_node_selector(document: Any, effort: Effort | None = None) -> NodeSelector:
    """Read a raw NodeSelector, whatever the document holds; an empty term selects nothing. Each term is charged."""
    if not isinstance(document, Mapping):
        return NodeSelector((), (f"a {type(document).__name__}, expected an object",))
    raw = document.get("nodeSelectorTerms") or ()
    if not _is_list_of_objects(raw):
        return NodeSelector((), ("nodeSelectorTerms is not a list of objects",))
    terms, problems = [], []
    for entry in raw:
        if effort is not None:
            effort.charge(TERM_READING_STEPS, Work.NODES)
        try:
            term = Term(
                _rules(entry.get("matchExpressions"), "matchExpressions"),
                _rules(entry.get("matchFields"), "matchFields"),
            )
        except _UnreadableTermError as error:
            problems.append(str(error))
            continue
        if term.labels or term.fields:
            terms.append(term)
    return NodeSelector(tuple(terms), tuple(problems))


class _UnreadableTermError(Exception):
    """A term that cannot be read; stays inside this module."""


def _rules(value: Any, part: str) -> tuple[SelectorRequirement, ...]:
    entries = value or ()
    if not _is_list_of_objects(entries):
        raise _UnreadableTermError(f"{part} is not a list of objects")
    return tuple(_rule(entry, part) for entry in entries)


def _rule(entry: Mapping[str, Any], part: str) -> SelectorRequirement:
    values = entry.get("values") or ()
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise _UnreadableTermError(f"{part}: values are not a list of strings")
    key, operator = entry.get("key"), entry.get("operator")
    if not isinstance(key, str) or not isinstance(operator, str):
        raise _UnreadableTermError(f"{part}: key or operator is not a string")
    rule = SelectorRequirement(key, operator, tuple(values))
    problem = _label_problem(rule) if part == "matchExpressions" else _field_problem(rule)
    if problem:
        raise _UnreadableTermError(f"{part}: key {key!r}: {problem}")
    return rule


def _label_problem(rule: SelectorRequirement) -> str:
    if rule.operator not in _LABEL_OPERATORS:
        return f"operator {rule.operator!r} is not known"
    if not _is_label_key(rule.key):
        return "not a valid label key"
    if rule.operator in ("In", "NotIn") and not rule.values:
        return f"{rule.operator} needs a value"
    if rule.operator in ("Exists", "DoesNotExist") and rule.values:
        return f"{rule.operator} takes no value"
    if rule.operator in ("Gt", "Lt") and (len(rule.values) != 1 or integer(rule.values[0]) is None):
        return f"{rule.operator} needs one whole number"
    wrong = _first_wrong(rule.values)
    return f"{wrong!r} is not a label value" if wrong is not None else ""


def _field_problem(rule: SelectorRequirement) -> str:
    if rule.operator not in _FIELD_OPERATORS:
        return f"operator {rule.operator!r} is not known for fields"
    return "" if len(rule.values) == 1 else f"{len(rule.values)} values, expected one"


def _first_wrong(values: Iterable[str]) -> str | None:
    return next((value for value in values if value and not _NAME.fullmatch(value)), None)


def _is_label_key(key: str) -> bool:
    domain, slash, name = key.rpartition("/")
    return _NAME.fullmatch(name) is not None and (not slash or _DOMAIN.fullmatch(domain) is not None)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(entry, Mapping) for entry in value)


CORDONED: Final = "cordoned"
TAINTED: Final = "with taint "
"""How unfit_for() begins to speak of a taint of a node."""

UNSCHEDULABLE_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What `kubectl cordon` adds; a pod that tolerates it may still go there."""

"""PreferNoSchedule only lowers kube-scheduler's score. Other effects of devices, such as None, keep no pod away."""


def unfit_for(pod: Pod, required: NodeSelector | None, tolerations: Sequence[Toleration], node: Node) -> str | None:
    """Return why the pod cannot run on the node, in words that follow a count of nodes; None when it can.

    `required` and `tolerations` are the pod's required_affinity() and tolerations_of(). A pod that names its node
    (spec.nodeName) has bypassed the scheduler: only the name counts then.
    """
    if pod.spec.node_name:
        return None if pod.spec.node_name == node.metadata.name else "not named by the pod"
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return "not matching the pod's nodeSelector"
    if required is not None and not required.matches(node):
        if required.problems:
            return f"not matching the pod's node affinity, which cannot be read whole: {required.problems[0]}"
        return "not matching the pod's node affinity"
    if node.spec.unschedulable and not tolerates(tolerations, UNSCHEDULABLE_TAINT):
        return CORDONED
    taint = first_untolerated(node.spec.taints, tolerations)
    return f"{TAINTED}{taint.key} that the pod does not tolerate" if taint is not None else None


def required_affinity(pod: Pod, effort: Effort | None = None) -> NodeSelector | None:
    """Return what a node has to match for the pod; None when the pod says nothing. What cannot be read matches no node.
    Each term is charged.
    """
    node_affinity = pod.spec.affinity.get("nodeAffinity")
    if node_affinity is None:
        return None
    if not isinstance(node_affinity, Mapping):
        return NodeSelector((), ("nodeAffinity is not an object",))
    required = unpacked(node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    return None if required is None else read_node_selector(required, effort)


def first_untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """Return the first untolerated taint with effect NoSchedule or NoExecute. Other effects do not count."""
    known = tuple(tolerations)
    return next((taint for taint in keeping_off(taints) if not tolerates(known, taint)), None)


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Return whether any toleration covers the taint; the rules are the same for nodes and for devices."""
    return any(_covers(toleration, taint) for toleration in tolerations)


def _covers(toleration: Toleration, taint: Taint) -> bool:
    # No key stands for every key, even with Equal. Lt and Gt are for nodes, behind a gate that is off in 1.36.
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and toleration.value == taint.value)
