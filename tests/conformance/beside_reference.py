"""Random cases beside Kubernetes' own allocators, built as Go modules: `make conformance-go`. Needs Go.

Two kinds of cases are asked, of k8s.io/dynamic-resource-allocation of each version that we support:

* one node with arbitrary devices: the plain search over our rules must answer as kube-scheduler does, and the product's
  own search must find the same first allocation;
* nodes of our driver with whole GPUs, shares and parts, through the whole allocator: it must find a node wherever the
  reference finds one and nowhere else, and the reference must accept the devices that were chosen.

Differences are allowed where docs/design/allocator.md has a row for them. Exit status 1 for any other, 2 when a
program cannot be built.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from conformance.allocator import difference, features_of_case, first_legal, posed_case
from conformance.kube_scheduler import answer_of
from dracaena.api.names import taint_key
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.read.features import KubernetesVersion
from dracaena.controller.allocation.result import Allocation
from support.allocation import DRIVER, device_class, node, pod
from support.go_programs import GoError, build, run
from support.mig_nodes import mig_classes
from support.random_parts import RandomParts
from support.random_shares import RandomShares
from support.random_snapshots import random_snapshot
from support.slow_partitions import EITHER

FOLDER: Final = Path(__file__).parent / "allocator_reference"
MODULES: Final[Mapping[KubernetesVersion, str]] = {(1, 36): "go.1.36.mod", (1, 37): "go.mod"}

ON_BY_DEFAULT: Final = (
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus",
    "DRAFractionalCapacityRange",
)
ONLY_OF_1_37: Final = ("DRAFractionalCapacityRange", "DRADeviceCompatibilityGroups")

CUT_OFF: Final = "the search was cut off"
"""In the reason of a pod whose node was not searched to the end, which docs/design/allocator.md allows."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reference:
    """The allocator of one version, as a program."""

    version: KubernetesVersion
    program: Path

    def ask(self, documents: Sequence[Document]) -> list[Document]:
        """Return its answers, with `results` and `error`, in order. Raises GoError."""
        told = "\n".join(map(json.dumps, documents))
        lines = run([str(self.program)], FOLDER, told).splitlines()
        if len(lines) != len(documents):
            raise GoError(f"{len(documents)} cases were asked, {len(lines)} answered")
        return [json.loads(line) for line in lines]


# One node with arbitrary devices


def snapshot(seed: int, version: KubernetesVersion) -> Document:
    """Return a random case as an API server of this version stores it: with defaults, without newer fields."""
    found: Document = random_snapshot(seed)
    for claim in found["claims"]:
        for request in claim["spec"]["devices"]["requests"]:
            for body in request.get("firstAvailable") or [request["exactly"]]:
                if body.setdefault("allocationMode", "ExactCount") == "ExactCount":
                    body.setdefault("count", 1)
    if version >= (1, 37):
        return {**found, "features": [*found["features"], "DRAFractionalCapacityRange"]}
    for item in found["slices"]:
        for device in item["spec"].get("devices") or ():
            for one in device.get("consumesCounters") or ():
                one.pop("compatibilityGroups", None)
    return {**found, "features": [gate for gate in found["features"] if gate not in ONLY_OF_1_37]}


def row_of(case: Document) -> str:
    """Return which row of docs/design/allocator.md allows a case to be answered otherwise; "" if none does."""
    if case["version"] < (1, 37):
        for claim in case["claims"]:
            if any("distinctAttribute" in one for one in claim["spec"]["devices"].get("constraints") or ()):
                return "distinctAttribute remembers one device for each request"
    return ""


def compare_snapshots(reference: Reference, seeds: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yield for each case what Kubernetes answered, or the row that allows a difference, and the difference if none
    does."""
    numbers = list(seeds)
    cases = [snapshot(seed, reference.version) for seed in numbers]
    for seed, case, answer in zip(numbers, cases, reference.ask(cases), strict=True):
        asked = {**case, **answer, "version": reference.version}
        selectors = CelSelectors(features_of_case(asked))
        found = difference(asked, answer_of(posed_case(asked, selectors)))
        if not found and answer["results"]:
            found = difference(asked, first_legal(asked, selectors))
        row = row_of(asked) if found else ""
        kind = "error" if answer["error"] else "allocated" if answer["results"] else "nothing"
        yield row or kind, "" if row or not found else f"snapshot {seed}: {found}"


# Nodes of ours, through the whole allocator


@dataclass(frozen=True, slots=True)
class World:
    """Nodes of our driver and a pod that waits for these claims."""

    name: str
    nodes: tuple[str, ...]
    slices: Sequence[ResourceSlice]
    held: Sequence[ResourceClaim]
    waiting: Sequence[ResourceClaim]
    allocation: Allocation | None
    why: str
    """Why there is no allocation, in the controller's words."""


def world(seed: int) -> World:
    """Return a random cluster with shares or with parts of GPUs, and what the allocator gives a pod there."""
    case: RandomShares | RandomParts
    if seed % 2:
        case = RandomShares(seed, modes=("none",))  # that modes exclude one another is a rule of ours alone
    else:
        case = RandomParts.either(seed) if seed % 4 else RandomParts(seed)
    claims = case.waiting_claims()
    user = pod("pod", *(one.metadata.name for one in claims))
    inventory, allocator = case.inventory(), Allocator()
    found = allocator.allocate(inventory, user, claims)
    allocation = found if isinstance(found, Allocation) else None
    return World(
        name=f"{type(case).__name__} {seed}",
        nodes=tuple(one.name for one in case.nodes),
        slices=case.slices,
        held=case.claims,
        waiting=claims,
        allocation=allocation,
        why="" if allocation is not None else str(allocator.explain(inventory, user, claims)),
    )


def question(there: World, name: str, *, only: frozenset[str] | None = None) -> Document:
    """Return what the reference is asked about a node; `only`: of the devices that nobody holds there are these."""
    held = _holders(there.held)
    kept = {entry["Device"] for entry in (*held["allocatedDevices"], *held["aggregatedCapacity"])}
    return {
        "features": ON_BY_DEFAULT,
        "node": _plain(node(name)),
        "classes": [_plain(one) for one in (*mig_classes(), device_class(EITHER))],
        "slices": [_slice(item, None if only is None else only | kept) for item in there.slices],
        "claims": [_with_defaults(_plain(one)) for one in there.waiting],
        **held,
    }


def compare_worlds(reference: Reference, seeds: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yield for each cluster what the reference answered, and how ours differs ("": not)."""
    worlds = [world(seed) for seed in seeds]
    asked = [question(one, name) for one in worlds for name in one.nodes]
    answers = iter(reference.ask(asked))
    given = [bool(sum(bool(next(answers)["results"]) for _ in one.nodes)) for one in worlds]
    chosen = [(one, one.allocation) for one in worlds if one.allocation is not None]
    again = iter(reference.ask([question(one, found.node, only=_devices(found)) for one, found in chosen]))
    for one, is_given in zip(worlds, given, strict=True):
        kind = "allocated" if is_given else "nothing"
        if one.allocation is None:
            is_cut_off = is_given and CUT_OFF in one.why
            differs = is_given and not is_cut_off
            text = f"{one.name}: the reference allocates, ours does not: {one.why}"
            yield CUT_OFF if is_cut_off else kind, text if differs else ""
            continue
        answer = next(again)
        if not is_given:
            yield kind, f"{one.name}: ours allocates on {one.allocation.node}, the reference nowhere"
        elif not answer["results"]:
            refused = answer["error"] or "nothing fits"
            yield kind, f"{one.name}: of the devices chosen on {one.allocation.node} the reference says: {refused}"
        else:
            yield kind, ""


def _devices(allocation: Allocation) -> frozenset[str]:
    return frozenset(result.device for entry in allocation.claims for result in entry.results)


def _holders(claims: Iterable[ResourceClaim]) -> Document:
    devices, shares = [], []
    for claim in claims:
        allocation = claim.status.allocation
        assert allocation is not None
        for result in allocation.devices.results:
            entry = {"Driver": result.driver, "Pool": result.pool, "Device": result.device, "ShareID": ""}
            if result.share_id is None:
                devices.append(entry)
            else:
                shares.append({**entry, "Capacity": result.consumed_capacity})
    return {"allocatedDevices": devices, "allocatedShared": [], "aggregatedCapacity": shares}


def _slice(item: ResourceSlice, only: frozenset[str] | set[str] | None) -> Document:
    """Return a slice without the taint that keeps kube-scheduler off our devices."""
    devices = [
        msgspec.structs.replace(one, taints=[taint for taint in one.taints if taint.key != taint_key(DRIVER)])
        for one in item.spec.devices
        if only is None or one.name in only
    ]
    return _plain(msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices)))


def _with_defaults(claim: Document) -> Document:
    for request in claim["spec"]["devices"]["requests"]:
        for body in request.get("firstAvailable") or [request["exactly"]]:
            if body.setdefault("allocationMode", "ExactCount") == "ExactCount":
                body.setdefault("count", 1)
    return claim


def _plain(item: Any) -> Document:
    found: Document = msgspec.json.decode(msgspec.json.encode(item))
    return found


def main(arguments: Sequence[str]) -> int:
    """Ask, print the counts of each kind of case and every difference, and return the exit status."""
    parser = argparse.ArgumentParser(prog="make conformance-go", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=2_000, help="of each kind and version (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.first, chosen.first + chosen.cases)
    failed = 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            for version, modules in MODULES.items():
                shown = ".".join(map(str, version))
                print(f"Kubernetes {shown}: build its allocator", file=sys.stderr, flush=True)
                reference = Reference(version, Path(folder) / f"allocator-{shown}")
                build(FOLDER, reference.program, modules=modules)
                for title, compared in (
                    ("one node, arbitrary devices", compare_snapshots(reference, seeds)),
                    ("the whole allocator", compare_worlds(reference, seeds)),
                ):
                    failed += _report(f"Kubernetes {shown}, {title}", compared)
    except GoError as error:
        print(f"make conformance-go: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def _report(title: str, compared: Iterable[tuple[str, str]]) -> int:
    counts, differences = Counter[str](), []
    for kind, found in compared:
        counts[kind] += 1
        differences += [found] if found else []
    total = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{title}: {sum(counts.values())} cases ({total}), {len(differences)} different")
    for found in differences:
        print(f"    {found[:2_000]}")
    return len(differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
