"""Cases of the structured allocator: what Kubernetes' own answers for a node, claims, classes and slices.

A case is a JSON object: `features` (feature gates), `node`, `classes`, `slices`, `claims`, `allocatedDevices`,
`allocatedShared` and `aggregatedCapacity` (who holds what), and the answer: `results` (one allocation a claim, null
when nothing fits) or `error`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import count
from typing import Any, Final

import msgspec

from dracaena.api import objects, resource_objects
from dracaena.api.device_id import DeviceId
from dracaena.api.device_taints import with_taint_rules
from dracaena.api.quantity import parse_quantity
from dracaena.controller.allocation.legal.books import Books, Holding
from dracaena.controller.allocation.legal.outcome import DoesNotFit, Mistake, NeedsPerson
from dracaena.controller.allocation.legal.pools import SliceIndex, gather_pools
from dracaena.controller.allocation.legal.problem import Problem, Snapshot, pose
from dracaena.controller.allocation.legal.read.claims import Claim, Unsupported, read_claim, read_class
from dracaena.controller.allocation.legal.read.features import RULES_OF_1_37, V1_37, Features, KubernetesVersion
from dracaena.controller.allocation.legal.read.slices import Slice, read_slice
from dracaena.controller.allocation.legal.selectors import Selectors

Document = Mapping[str, Any]

GATES: Final = {
    "DRAAdminAccess": "admin_access",
    "DRAPrioritizedList": "prioritized_list",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRADeviceTaints": "device_taints",
    "DRADeviceBindingConditions": "binding_conditions",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRAListTypeAttributes": "list_attributes",
    "DRAFractionalCapacityRange": "fractional_capacity_range",
    "DRADeviceCompatibilityGroups": "compatibility_groups",
    "DRADerivedAttributes": "derived_attributes",
}
"""Which field of Features a gate switches."""

WITHOUT_A_RULE: Final = frozenset({"DRAOptionalNodeOperations"})
"""Gates that change nothing here: the nodes themselves declare whether their kubelet has the feature."""

UNGATED: Final = frozenset(RULES_OF_1_37) - frozenset(GATES.values())
"""Fields that no gate switches, but the version."""


def cluster_of(
    case: Document,
    selectors: Selectors,
    *,
    features: Features | None = None,
    books: Books | None = None,
) -> Snapshot:
    """Read what a case says of the cluster; what is given besides stands for what the case says of it."""
    classes = [msgspec.convert(entry, resource_objects.DeviceClass) for entry in case.get("classes") or ()]
    return Snapshot(
        classes={entry.metadata.name: read_class(entry) for entry in classes},
        books=books if books is not None else Books(holdings_of_case(case)),
        selectors=selectors,
        features=features if features is not None else features_of(case.get("features") or ()),
    )


def features_of(gates: Iterable[str], version: KubernetesVersion = (1, 36)) -> Features:
    """Return the features of exactly these gates in a version; `A+B` stands for A. Raises ValueError for an unknown
    gate."""
    names = {gate.partition("+")[0] for gate in gates} - WITHOUT_A_RULE
    unknown = sorted(names - GATES.keys())
    if unknown:
        raise ValueError(f"feature gate {unknown[0]!r} is not known; known: {', '.join(sorted(GATES))}")
    switched_on = {GATES[name] for name in names} | (UNGATED if version >= V1_37 else frozenset())
    return Features(**{field.name: field.name in switched_on for field in fields(Features)})


def holdings_of_case(case: Document) -> list[Holding]:
    """Read who holds what. Consumed capacity comes without share ids, so each entry is a share of its own."""
    numbers = count(1)
    held = [Holding("somebody", _device_id(entry)) for entry in case.get("allocatedDevices") or ()]
    held += [Holding("somebody", _device_id(entry), entry["ShareID"]) for entry in case.get("allocatedShared") or ()]
    for entry in case.get("aggregatedCapacity") or ():
        consumed = tuple((name, parse_quantity(text).nano) for name, text in sorted(entry["Capacity"].items()))
        held.append(Holding("somebody", _device_id(entry), f"share-{next(numbers)}", consumed))
    return held


def claims_of(case: Document) -> list[Claim] | Unsupported:
    """Read the claims of a case, or return the first thing in them that is not understood."""
    claims = []
    for entry in case.get("claims") or ():
        claim = read_claim(msgspec.convert(entry, resource_objects.ResourceClaim))
        if isinstance(claim, Unsupported):
            return claim
        claims.append(claim)
    return claims


def problem_of(
    case: Document, selectors: Selectors, *, taint_rules: Sequence[resource_objects.DeviceTaintRule] = (), **beside: Any
) -> Problem | DoesNotFit | NeedsPerson:
    """Pose the question of a case, with what `cluster_of` takes besides."""
    claims = claims_of(case)
    if isinstance(claims, Unsupported):
        return NeedsPerson(Mistake.UNSUPPORTED, "claim", str(claims))
    slices = [_slice(entry) for entry in case.get("slices") or ()]
    read = [read_slice(with_taint_rules(entry, taint_rules)) for entry in slices]
    return posed(cluster_of(case, selectors, **beside), read, msgspec.convert(case["node"], objects.Node), claims)


def posed(
    cluster: Snapshot, slices: Iterable[Slice], node: objects.Node, claims: Sequence[Claim]
) -> Problem | DoesNotFit | NeedsPerson:
    """Pose a question about the pools that these slices make for a node."""
    pools = gather_pools(SliceIndex(slices), node, cluster.features)
    return pools if isinstance(pools, NeedsPerson) else pose(cluster, node.metadata.name, claims, pools)


def _slice(document: Document) -> resource_objects.ResourceSlice:
    """Read a slice as the product does, fields of a newer Kubernetes included."""
    try:
        return msgspec.convert(document, resource_objects.ResourceSlice)
    except msgspec.ValidationError:
        spec = resource_objects.known_fields(msgspec.json.encode(document["spec"]))
        return msgspec.convert({**document, "spec": spec}, resource_objects.ResourceSlice)


def _device_id(entry: Document) -> DeviceId:
    return DeviceId(entry["Driver"], entry["Pool"], entry["Device"])
