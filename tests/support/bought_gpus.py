"""Random clusters made GPU by GPU, with the state of each worked out while it is made: the slow, obvious version."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.api.objects import Node, ObjectMeta, Taint
from dracaena.api.resource_objects import (
    Device,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
)
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine, node, pool_slice
from support.mig_nodes import mig_slices, part_name
from support.mig_tables import A30, A100, MigPart, Product, is_legal, possible
from support.passthrough import NO_GPUS, on_demand, on_demand_slices, passthrough_gpu, with_passthrough
from support.shares import holding_share, in_shares

FAULTS = (("xid", "79", "NoSchedule"), ("gpu-lost", "", "NoExecute"), ("row-remap", "pending", "NoSchedule"))
HARMLESS = (("xid", "13", "None"), ("slowdown", "", "None"))
WITHHELD = (("mig-layout", "pending", "NoSchedule"), ("driver-released", "", "NoSchedule"))
CLOSING_NODE: Final[Sequence[dict[str, Any]]] = (
    {"unschedulable": True},
    {"taints": [Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")]},
)
OPEN_NODE: Final[Sequence[dict[str, Any]]] = (
    {},
    {},
    {},
    {"taints": [Taint(key="dedicated", value="gpu", effect="NoSchedule")]},
)


@dataclass(slots=True)
class BoughtGpus:
    """Objects as the API would list them, and how many GPUs are in each state."""

    rng: random.Random
    nodes: list[Node] = field(default_factory=list)
    slices: list[ResourceSlice] = field(default_factory=list)
    claims: list[ResourceClaim] = field(default_factory=list)
    rules: list[DeviceTaintRule] = field(default_factory=list)
    expected: Counter[str] = field(default_factory=Counter)
    by_node: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, name: str) -> None:
        """Add a node with a pool, and count its GPUs."""
        rng = self.rng
        is_open = rng.random() < 0.8
        self.nodes.append(node(name, **rng.choice(OPEN_NODE if is_open else CLOSING_NODE)))
        if rng.random() < 0.05:
            self.nodes.pop()
            is_open = False
        counts = self.by_node[name] = Counter()
        rng.choice((self._whole, self._shared, self._cut, self._divided, self._virtual, self._two_ways))(
            name, counts, is_open
        )
        self.expected += counts

    def _taints(self, count: int) -> tuple[dict[int, list[Taint]], list[str]]:
        """Draw taints: the devices' by ordinal, and what they mean: ``, `failed` or `closed`."""
        found: dict[int, list[Taint]] = {}
        means = []
        for ordinal in range(count):
            mean = self.rng.choices(("", "told", "failed", "closed", "withheld"), (12, 2, 3, 1, 1))[0]
            one = {"told": HARMLESS, "failed": FAULTS, "withheld": WITHHELD}.get(mean)
            if one is not None:
                name, value, effect = self.rng.choice(one)
                found[ordinal] = [Taint(key=f"{DRIVER}/{name}", value=value, effect=effect)]
            elif mean:
                found[ordinal] = [Taint(key="maintenance", effect="NoSchedule")]
            means.append({"told": "", "withheld": "closed"}.get(mean, mean))
        return found, means

    def _hold(self, pool: str, device: str) -> None:
        self.claims.append(holding(claim(f"c{len(self.claims)}"), pool, device))

    def _whole(self, name: str, counts: Counter[str], is_open: bool) -> None:
        made = machine("four", blocks(2, 2, inside="NV12", outside="SYS"))
        foreign, means = self._taints(4)
        page = pool_slice(name, made, foreign=foreign)
        has_ours = self.rng.random() < 0.85
        left_out = {ordinal for ordinal in range(3) if self.rng.random() < 0.1}
        if not has_ours:
            page = pool_slice(name, made, foreign=foreign, taints=())
        closed_by_rule = self._rule(name, made) if self.rng.random() < 0.2 else -1
        devices = [device for ordinal, device in enumerate(page.spec.devices) if ordinal not in left_out]
        self.slices.append(with_devices(page, devices))
        for ordinal, mean in enumerate(means):
            is_held = self.rng.random() < 0.4
            if ordinal in left_out:
                counts["unpublished"] += 1
                continue
            if is_held:
                self._hold(name, device_name(made, ordinal))
            given = is_open and has_ours and not mean and ordinal != closed_by_rule
            counts["failed" if mean == "failed" else "used" if is_held else "free" if given else "closed"] += 1

    def _rule(self, name: str, made: Machine) -> int:
        selector = DeviceTaintSelector(driver=DRIVER, pool=name, device=device_name(made, 3))
        spec = DeviceTaintRuleSpec(taint=Taint(key="repair", effect="NoSchedule"), device_selector=selector)
        self.rules.append(DeviceTaintRule(metadata=ObjectMeta(name=f"rule-{name}"), spec=spec))
        return 3

    def _shared(self, name: str, counts: Counter[str], is_open: bool) -> None:
        made = machine("four", blocks(2, 2, inside="NV12", outside="SYS"))
        foreign, means = self._taints(4)
        self.slices.append(in_shares(pool_slice(name, made, foreign=foreign)))
        for ordinal, mean in enumerate(means):
            shares = self.rng.choice(((), (80,), (20,), (20, 30), (40, 40)))
            for gib in shares:
                amounts = {"memory": f"{gib}Gi", "cores": "10"}
                self.claims.append(holding_share(f"c{len(self.claims)}", name, device_name(made, ordinal), amounts))
            given = is_open and not mean
            held = "partial" if given and sum(shares) < 80 else "used"
            counts["failed" if mean == "failed" else held if shares else "free" if given else "closed"] += 1

    def _cut(self, name: str, counts: Counter[str], is_open: bool) -> None:
        made = machine("two", blocks(2, inside="NV12", outside="SYS"))
        product = self.rng.choice((A100, A30))
        foreign, means = self._taints(2)
        others = {ordinal: self._legal(product, self.rng.choice((0, 0, 0, 1, 2, 7)), []) for ordinal in range(2)}
        pages = mig_slices(name, made, [product, product], foreign=others)
        without = {ordinal for ordinal in range(2) if self.rng.random() < 0.15}
        uuids = {made.gpus[ordinal].uuid: ordinal for ordinal in range(2)}

        def tainted(device: Device) -> Device:
            of = next(device.attributes[key].string for key in ("parentUUID", "uuid") if key in device.attributes)
            return msgspec.structs.replace(device, taints=[*device.taints, *foreign.get(uuids[of or ""], ())])

        devices = [tainted(device) for device in pages[0].spec.devices]
        wholes = {device_name(made, ordinal) for ordinal in without}
        self.slices += [with_devices(pages[0], [one for one in devices if one.name not in wholes]), *pages[1:]]
        for ordinal, mean in enumerate(means):
            parts = self._legal(product, self.rng.choice((0, 0, 1, 2, 7, 40)), others[ordinal])
            for one in parts:
                self._hold(name, part_name(made, ordinal, one))
            given = is_open and not mean
            has_room = given and bool(possible(product, frozenset((*parts, *others[ordinal]))))
            whole = "free" if given and ordinal not in without and not others[ordinal] else ""
            left = "partial" if has_room else "used" if parts else "closed"
            counts["failed" if mean == "failed" else left if parts else whole or left] += 1

    def _legal(self, product: Product, tries: int, beside: Sequence[MigPart]) -> list[MigPart]:
        """Draw parts that can lie beside each other and beside others."""
        parts: list[MigPart] = []
        for _ in range(tries):
            one = self.rng.choice(product.parts())
            if one not in (*parts, *beside) and is_legal(product, [*parts, *beside, one]):
                parts.append(one)
        return parts

    def _divided(self, name: str, counts: Counter[str], is_open: bool) -> None:
        """One GPU that an admin divided in two, of which only the MIG devices are published, beside three others."""
        made = machine("four", blocks(2, 2, inside="NV12", outside="SYS"))
        parent = replace(made.gpus[0], mig_enabled=True)
        migs = tuple(MigDevice(parent.uuid, f"MIG-{at:08x}-{name}", at, 0, "3g.40gb", 4 * at, 4) for at in range(2))
        page = pool_slice(name, replace(made, gpus=(parent, *made.gpus[1:]), mig_devices=migs))
        sick = self.rng.random() < 0.2
        taints = [Taint(key=f"{DRIVER}/xid", value="79", effect="NoSchedule")] if sick else []
        names = {mig.device_name for mig in migs}
        devices = [
            msgspec.structs.replace(device, taints=[*device.taints, *taints]) if device.name in names else device
            for device in page.spec.devices
            if device.name != device_name(made, 0)
        ]
        self.slices.append(with_devices(page, devices))
        held = [mig for mig in migs if self.rng.random() < 0.5]
        for mig in held:
            self._hold(name, mig.device_name)
        left = "partial" if is_open and len(held) < 2 else "used" if held else "closed"
        counts["failed" if sick else left] += 1
        counts["free" if is_open else "closed"] += 3

    def _virtual(self, name: str, counts: Counter[str], is_open: bool) -> None:
        gpus = [passthrough_gpu(number) for number in range(3)]
        self.slices.append(pool_slice(name, with_passthrough(NO_GPUS, gpus)))
        for gpu in gpus:
            is_held = self.rng.random() < 0.4
            if is_held:
                self._hold(name, gpu.device_name)
            counts["used" if is_held else "vm" if is_open else "closed"] += 1

    def _two_ways(self, name: str, counts: Counter[str], is_open: bool) -> None:
        """GPUs for containers or for virtual machines, two devices each."""
        made = on_demand(machine("host", blocks(2, inside="PIX", outside="SYS")))
        self.slices += on_demand_slices(name, made)
        for ordinal in range(2):
            ways = (None, device_name(made, ordinal), passthrough_gpu(ordinal).device_name)
            device = self.rng.choice(ways)
            if device is not None:
                self._hold(name, device)
            counts["used" if device is not None else "free" if is_open else "closed"] += 1


def with_devices(page: ResourceSlice, devices: Sequence[Device]) -> ResourceSlice:
    """The slice with other devices."""
    return msgspec.structs.replace(page, spec=msgspec.structs.replace(page.spec, devices=list(devices)))


def bought_gpus(seed: Any) -> BoughtGpus:
    """A cluster of up to six nodes."""
    made = BoughtGpus(random.Random(f"bought {seed}"))
    for number in range(made.rng.randint(0, 6)):
        made.add(f"n{number}")
    return made
