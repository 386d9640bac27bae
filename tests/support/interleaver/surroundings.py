"""What is around pods and claims, and changes: nodes, slices, the class, and a rule that taints every device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from dracaena.api.objects import Node, ObjectMeta, Taint
from dracaena.api.resource_objects import DeviceClass, DeviceTaintRule, ResourceSlice
from support.interleaver.scenario import Scenario
from support.interleaver.server import Server

BROKEN: Final = Taint(key="broken", effect="NoSchedule")
CLASS: Final = "class"
RULE: Final = "rule"

WEIGHT: Final = 0.12
"""Of each change: rarer than what users do with pods, so that decisions come between."""

GO_ON_WEIGHT: Final = 1.0
"""Of the next write of a change that takes several."""


class Pool:
    """The slices of one pool. A change writes or deletes them one after the other, and other steps come between."""

    def __init__(self, server: Server, slices: Sequence[ResourceSlice]) -> None:
        self._server = server
        self._made = slices
        self._generation = 1
        self._is_tainted = False
        self._to_do: list[tuple[ResourceSlice, bool]] = []
        """Slices, and whether they are written or deleted."""

    def steps(self) -> Iterator[tuple[float, str]]:
        """Yield the changes that are possible now, each as a verb."""
        if self._to_do:
            yield GO_ON_WEIGHT, "completes"
            return
        yield WEIGHT, "withdraws" if self._is_published() else "publishes"
        yield WEIGHT, "untaints" if self._is_tainted else "taints"

    def take(self, verb: str) -> None:
        """Make a change, or go on with it: one slice."""
        if verb == "withdraws":
            self._to_do = [(page, False) for page in self._made]
        elif verb != "completes":
            self._publish(is_tainted=self._is_tainted if verb == "publishes" else verb == "taints")
        page, is_written = self._to_do.pop(0)
        if is_written:
            self._server.put_around(page)
        else:
            self._server.remove_around(type(page), page.key)

    def restore(self) -> None:
        """Take all changes back, or make the first one."""
        while self._to_do:
            self.take("completes")
        self._publish(is_tainted=False)
        while self._to_do:
            self.take("completes")

    def usable(self) -> list[str]:
        """Return the devices that may be allocated: those of a complete pool that have no taint of ours."""
        there = [self._server.around[type(page)].get(page.key) for page in self._made]
        pages = [page for page in there if page is not None]
        is_complete = len(pages) == len(self._made) and len({page.spec.pool.generation for page in pages}) == 1
        devices = (device for page in pages if is_complete for device in page.spec.devices)
        return [device.name for device in devices if BROKEN not in device.taints]

    def _is_published(self) -> bool:
        return all(page.key in self._server.objects(type(page)) for page in self._made)

    def _publish(self, *, is_tainted: bool) -> None:
        self._is_tainted = is_tainted
        self._generation += 1
        self._to_do = [
            (self._now(page, is_tainted=is_tainted and not place), True) for place, page in enumerate(self._made)
        ]

    def _now(self, page: ResourceSlice, *, is_tainted: bool) -> ResourceSlice:
        """Return a slice of the newest generation; if tainted, with a taint on its first device."""
        pool = msgspec.structs.replace(page.spec.pool, generation=self._generation)
        devices = page.spec.devices
        if is_tainted:
            first, *others = devices
            devices = [msgspec.structs.replace(first, taints=[*first.taints, BROKEN]), *others]
        return msgspec.structs.replace(page, spec=msgspec.structs.replace(page.spec, pool=pool, devices=devices))


class Surroundings:
    """Changes by admins, by our plugins and by those of another driver. Each can be taken back, and restore() takes all
    of them back."""

    def __init__(self, scenario: Scenario, server: Server) -> None:
        self._server = server
        self._class = scenario.device_class
        self._nodes = {node.metadata.name: node for node, _ in scenario.nodes}
        self._changes = scenario.changes
        self._pools = {("plugin", node.metadata.name): Pool(server, slices) for node, slices in scenario.nodes}
        self._pools |= {("nic-plugin", name): Pool(server, slices) for name, slices in scenario.card_pools.items()}
        self.restore()

    def steps(self) -> Iterator[tuple[float, str]]:
        """Yield the changes that are possible now."""
        if not self._changes:
            return
        for name in self._nodes:
            node = self._node(name)
            yield WEIGHT, f"admins {'add' if node is None else 'remove'} {name}"
            if node is not None:
                yield WEIGHT, f"admins {'open' if node.spec.unschedulable else 'cordon'} {name}"
            for who in ("plugin", "nic-plugin"):
                pool = self._pools.get((who, name))
                for weight, verb in () if pool is None else pool.steps():
                    yield weight, f"{who} {verb} {name}"
        for kind, what in ((DeviceClass, CLASS), (DeviceTaintRule, RULE)):
            yield WEIGHT / 2, f"admins {'remove' if self._server.objects(kind) else 'add'} {what}"

    def take(self, who: str, verb: str, what: str) -> bool:
        """Make a change; return False when it is not possible now."""
        if f"{who} {verb} {what}" not in {step for _, step in self.steps()}:
            return False
        if who != "admins":
            self._pools[who, what].take(verb)
        elif what == CLASS:
            self._toggle(verb, self._class)
        elif what == RULE:
            self._toggle(verb, _rule())
        elif verb in ("add", "remove"):
            self._toggle(verb, self._nodes[what])
        else:
            spec = msgspec.structs.replace(self._nodes[what].spec, unschedulable=verb == "cordon")
            self._server.put_around(msgspec.structs.replace(self._nodes[what], spec=spec))
        return True

    def restore(self) -> None:
        """Take all changes back."""
        for name, node in self._nodes.items():
            if self._node(name) is None or self._server.around[Node][name].spec != node.spec:
                self._server.put_around(node)
        for pool in self._pools.values():
            pool.restore()
        if not self._server.objects(DeviceClass):
            self._server.put_around(self._class)
        for key in list(self._server.objects(DeviceTaintRule)):
            self._server.remove_around(DeviceTaintRule, key)

    def is_closed(self, name: str) -> bool:
        """Whether kube-scheduler sends no pod to a node."""
        node = self._node(name)
        return node is None or node.spec.unschedulable

    def usable_cards(self, name: str) -> list[str]:
        """Return the network cards of a node that kube-scheduler may allocate."""
        pool = self._pools.get(("nic-plugin", name))
        return [] if pool is None or self._server.objects(DeviceTaintRule) else pool.usable()

    def _node(self, name: str) -> Node | None:
        found: Node | None = self._server.around[Node].get(name)
        return found

    def _toggle(self, verb: str, item: Node | DeviceClass | DeviceTaintRule) -> None:
        if verb == "add":
            self._server.put_around(item)
        else:
            self._server.remove_around(type(item), item.key)


def _rule() -> DeviceTaintRule:
    document = {"deviceSelector": {}, "taint": {"key": BROKEN.key, "effect": BROKEN.effect}}
    return msgspec.convert({"metadata": msgspec.to_builtins(ObjectMeta(name=RULE)), "spec": document}, DeviceTaintRule)
