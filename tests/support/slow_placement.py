"""Where a pod may run because of other pods and of its storage: kube-scheduler's rules as the words of the API go, for
one node at a time, from objects as JSON. Every pod and every volume is looked at anew.

The words for a reason are those of the product, in the order in which it asks: they are what is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dracaena.api.quantity import parse_quantity
from dracaena.controller.allocation.nodes.placement.affinity import KEPT_OFF, NEAR_OTHERS, NOT_NEAR
from dracaena.controller.allocation.nodes.placement.spread import NO_DOMAIN, TOO_MANY
from dracaena.controller.allocation.nodes.placement.volumes import (
    IN_USE,
    NO_CLAIM,
    NO_VOLUME,
    NONE_TO_BIND,
    NOT_BOUND,
    NOT_THERE,
    OTHER_ZONE,
)
from support.reasons.nodes import Json, affinity_of, lacks_labels, selects, untolerated
from support.slow_selectors import selected

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONES = {"zone": "topology.kubernetes.io/zone", "region": "topology.kubernetes.io/region"}


@dataclass(frozen=True)
class SlowPlacement:
    """What there is."""

    nodes: Mapping[str, Json]
    """By name."""
    pods: Sequence[tuple[str, Json]] = ()
    """Those on nodes, each with its node."""
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels by name."""
    claims: Mapping[str, Json] = field(default_factory=dict)
    """PersistentVolumeClaims by `namespace/name`. Without any, nothing is said of volumes."""
    volumes: Mapping[str, Json] = field(default_factory=dict)
    classes: Mapping[str, Json] = field(default_factory=dict)

    def reason(self, pod: Json, node: str) -> str | None:
        """Why a node is unfit for a pod; None if it suits it."""
        return self.of_volumes(pod, node) or self.of_spread(pod, node) or self.of_affinity(pod, node)

    # Topology spread

    def of_spread(self, pod: Json, node: str) -> str | None:
        every = _spec(pod).get("topologySpreadConstraints") or ()
        constraints = [one for one in every if one["whenUnsatisfiable"] == "DoNotSchedule"]
        here = labels_of(self.nodes[node])
        for one in constraints:
            key = one["topologyKey"]
            if key not in here:
                return NO_DOMAIN
            counting = {n: item for n, item in self.nodes.items() if _counts(pod, one, constraints, item)}
            selector = _spread_selector(pod, one)
            domains = {labels_of(item)[key]: 0 for item in counting.values()}
            for name, item in self.pods:
                if name in counting and _is_among(selector, pod, item):
                    domains[labels_of(counting[name])[key]] += 1
            fewest = min(domains.values()) if len(domains) >= (one.get("minDomains") or 1) else 0
            itself = selector is not None and selected(selector, labels_of(pod))
            if domains.get(here[key], 0) + itself - fewest > one.get("maxSkew", 1):
                return TOO_MANY
        return None

    # Affinity to pods

    def of_affinity(self, pod: Json, node: str) -> str | None:
        here = labels_of(self.nodes[node])
        others = [(labels_of(self.nodes.get(n, {})), item) for n, item in self.pods if _uid(item) != _uid(pod)]
        near = _terms(pod, "podAffinity")
        if any(one["topologyKey"] not in here for one in near):
            return NOT_NEAR
        like_all = [(labels, item) for labels, item in others if all(self._is_about(one, pod, item) for one in near)]
        if not all(any(_is_shared(one, labels, here) for labels, _ in like_all) for one in near):
            is_there = any(one["topologyKey"] in labels for labels, _ in like_all for one in near)
            if is_there or not all(self._is_about(one, pod, pod) for one in near):
                return NOT_NEAR
        for one in _terms(pod, "podAntiAffinity"):
            if any(self._is_about(one, pod, item) and _is_shared(one, labels, here) for labels, item in others):
                return NEAR_OTHERS
        for labels, item in others:
            for one in _terms(item, "podAntiAffinity"):
                if self._is_about(one, item, pod, missing_has_labels=True) and _is_shared(one, labels, here):
                    return KEPT_OFF
        return None

    def _is_about(self, term: Json, owner: Json, other: Json, *, missing_has_labels: bool = False) -> bool:
        by_labels, named = term.get("namespaceSelector"), term.get("namespaces") or []
        if by_labels is None and not named:
            named = [_namespace(owner)]
        namespace = _namespace(other)
        if namespace not in named:
            if by_labels is None:
                return False
            is_there = namespace in self.namespaces or missing_has_labels or not any(by_labels.values())
            if not is_there or not selected(by_labels, self.namespaces.get(namespace, {})):
                return False
        return term.get("labelSelector") is not None and selected(term["labelSelector"], labels_of(other))

    # Volumes

    def of_volumes(self, pod: Json, node: str) -> str | None:
        names = list(dict.fromkeys(_claim_names(pod)))
        claims = [self.claims.get(f"{_namespace(pod)}/{name}") for name in names]
        if not self.claims or not names:
            return None
        there = [one for one in claims if one is not None]
        if len(there) < len(claims):
            return NO_CLAIM
        if any("ReadWriteOncePod" in _spec(one).get("accessModes", ()) and self._is_used(one, pod) for one in there):
            return IN_USE
        there.sort(key=lambda one: (_size(_spec(one).get("resources", {}).get("requests")), one["metadata"]["name"]))
        for one in there:
            if _is_bound(one):
                if _spec(one)["volumeName"] not in self.volumes:
                    return NO_VOLUME
            elif _spec(one).get("volumeName") or not self._waits(one):
                return NOT_BOUND
        bound = [self.volumes[_spec(one)["volumeName"]] for one in there if _is_bound(one)]
        if not all(self._is_near(volume, node) for volume in bound):
            return NOT_THERE
        if not self._can_bind([one for one in there if not _is_bound(one)], node):
            return NONE_TO_BIND
        return None if all(_is_in_zone(volume, labels_of(self.nodes[node])) for volume in bound) else OTHER_ZONE

    def _is_used(self, claim: Json, pod: Json) -> bool:
        """Whether another pod on a node uses a claim by its name."""
        return any(
            _namespace(item) == _namespace(pod)
            and _uid(item) != _uid(pod)
            and claim["metadata"]["name"] in _named(item)
            for _, item in self.pods
        )

    def _waits(self, claim: Json) -> bool:
        return bool(self.classes.get(_class(claim), {}).get("volumeBindingMode") == "WaitForFirstConsumer")

    def _is_near(self, volume: Json, node: str) -> bool:
        affinity = _spec(volume).get("nodeAffinity") or {}
        return affinity.get("required") is None or selects(affinity["required"], self.nodes[node])

    def _can_bind(self, claims: Sequence[Json], node: str) -> bool:
        """Whether each claim, the smaller before the larger, takes the smallest volume that is left for it, or gets one
        made."""
        taken: set[str] = set()
        for claim in claims:
            chosen_node = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
            if chosen_node not in (None, node):
                return False
            fitting = [
                volume
                for volume in self._suiting(claim)
                if chosen_node is None and volume["metadata"]["name"] not in taken and self._is_near(volume, node)
            ]
            if fitting:
                best = min(fitting, key=lambda one: (_size(_spec(one).get("capacity")), one["metadata"]["name"]))
                taken.add(best["metadata"]["name"])
            elif not self._makes(claim, node):
                return False
        return True

    def _suiting(self, claim: Json) -> list[Json]:
        """The volumes that a claim may have; where one is kept for it, that one alone."""
        of_class = [one for one in self.volumes.values() if _class(one) == _class(claim)]
        kept = [one for one in of_class if _is_kept_for(one, claim) and _is_like(one, claim)]
        if kept:
            return [min(kept, key=lambda one: one["metadata"]["name"])]
        selector = _spec(claim).get("selector")
        return [
            one
            for one in of_class
            if not _spec(one).get("claimRef")
            and _is_like(one, claim)
            and one.get("status", {}).get("phase") == "Available"
            and set(_spec(claim).get("accessModes", ())) <= set(_spec(one).get("accessModes", ()))
            and (selector is None or selected(selector, labels_of(one)))
        ]

    def _makes(self, claim: Json, node: str) -> bool:
        kind, here = self.classes[_class(claim)], labels_of(self.nodes[node])
        if kind.get("provisioner", "") in ("", "kubernetes.io/no-provisioner"):
            return False
        terms = [term.get("matchLabelExpressions") for term in kind.get("allowedTopologies") or ()]
        return not terms or any(
            rules and all(here.get(one["key"]) in one["values"] for one in rules) for rules in terms
        )


def labels_of(item: Json) -> Mapping[str, str]:
    labels: Mapping[str, str] = item.get("metadata", {}).get("labels") or {}
    return labels


def _spec(item: Json) -> Json:
    spec: Json = item.get("spec") or {}
    return spec


def _uid(pod: Json) -> str:
    meta = pod["metadata"]
    return str(meta.get("uid") or f"{meta.get('namespace', '')}/{meta.get('name', '')}")


def _namespace(pod: Json) -> str:
    return str(pod["metadata"].get("namespace", ""))


def _terms(pod: Json, kind: str) -> Sequence[Json]:
    terms: Sequence[Json] = ((_spec(pod).get("affinity") or {}).get(kind) or {}).get(REQUIRED) or ()
    return terms


def _is_shared(term: Json, labels: Mapping[str, str], here: Mapping[str, str]) -> bool:
    key = term["topologyKey"]
    return key in labels and labels[key] == here.get(key)


def _spread_selector(pod: Json, constraint: Json) -> Json | None:
    selector, own = constraint.get("labelSelector"), labels_of(pod)
    if selector is None:
        return None
    same = [name for name in constraint.get("matchLabelKeys") or () if name in own]
    more = [{"key": name, "operator": "In", "values": [own[name]]} for name in same]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *more]}


def _is_among(selector: Json | None, pod: Json, other: Json) -> bool:
    """A selector of everything counts no pod: so it is in kube-scheduler."""
    if selector is None or not (selector.get("matchLabels") or selector.get("matchExpressions")):
        return False
    if other["metadata"].get("deletionTimestamp") is not None or _uid(other) == _uid(pod):
        return False
    return _namespace(other) == _namespace(pod) and selected(selector, labels_of(other))


def _counts(pod: Json, constraint: Json, constraints: Sequence[Json], node: Json) -> bool:
    if any(one["topologyKey"] not in labels_of(node) for one in constraints):
        return False
    spec, wanted = _spec(pod), affinity_of(_spec(pod))
    is_wanted = not lacks_labels(spec, node) and (wanted is None or selects(wanted, node))
    if (constraint.get("nodeAffinityPolicy") or "Honor") == "Honor" and not is_wanted:
        return False
    return (constraint.get("nodeTaintsPolicy") or "Ignore") != "Honor" or not untolerated(spec, node)


def _named(pod: Json) -> Iterator[str]:
    for volume in _spec(pod).get("volumes") or ():
        if volume.get("persistentVolumeClaim"):
            yield volume["persistentVolumeClaim"]["claimName"]


def _claim_names(pod: Json) -> Iterator[str]:
    yield from _named(pod)
    for volume in _spec(pod).get("volumes") or ():
        if volume.get("ephemeral") is not None and not volume.get("persistentVolumeClaim"):
            yield f"{pod['metadata']['name']}-{volume['name']}"


def _is_bound(claim: Json) -> bool:
    is_done = "pv.kubernetes.io/bind-completed" in claim["metadata"].get("annotations", {})
    return bool(_spec(claim).get("volumeName")) and is_done


def _class(item: Json) -> str:
    beta = item["metadata"].get("annotations", {}).get("volume.beta.kubernetes.io/storage-class")
    return str(beta if beta is not None else _spec(item).get("storageClassName") or "")


def _size(amounts: Json | None) -> int:
    try:
        return parse_quantity(str((amounts or {}).get("storage", "0"))).nano
    except ValueError:
        return 0


def _is_kept_for(volume: Json, claim: Json) -> bool:
    kept, meta = _spec(volume).get("claimRef") or {}, claim["metadata"]
    is_named = (kept.get("name"), kept.get("namespace")) == (meta["name"], meta.get("namespace"))
    return is_named and kept.get("uid", "") in ("", meta.get("uid"))


def _is_like(volume: Json, claim: Json) -> bool:
    """Whether a volume is large enough and of the kind that a claim asks for."""
    has, wanted = _spec(volume), _spec(claim)
    if volume["metadata"].get("deletionTimestamp") is not None:
        return False
    if _size(has.get("capacity")) < _size(wanted.get("resources", {}).get("requests")):
        return False
    modes = (one.get("volumeMode") or "Filesystem" for one in (has, wanted))
    kinds = (one.get("volumeAttributesClassName") or "" for one in (has, wanted))
    return len(set(modes)) == len(set(kinds)) == 1


def _is_in_zone(volume: Json, here: Mapping[str, str]) -> bool:
    """By the labels of volumes of old kinds, beta or not; a node without any such label is in every zone."""
    every = {name: f"failure-domain.beta.kubernetes.io/{name}" for name in ZONES}
    if not {*every.values(), *ZONES.values()} & here.keys():
        return True
    for name, today in ZONES.items():
        for label in (every[name], today):
            values = [part.strip() for part in labels_of(volume).get(label, "").split("__")]
            if all(values) and here.get(label, here.get(today)) not in values:
                return False
    return True
