"""What is around pods and claims, and changes: nodes, slices, the class, and a rule that taints every device."""

from __future__ import annotations

from collections.abc import Iterator
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


class Surroundings:
    """Changes by admins and plugins. Each can be taken back, and restore() takes all of them back."""

    def __init__(self, scenario: Scenario, server: Server) -> None:
        self._server = server
        self._class = scenario.device_class
        self._nodes = {node.metadata.name: node for node, _ in scenario.nodes}
        self._slices = {node.metadata.name: published for node, published in scenario.nodes}
        self._generation = dict.fromkeys(self._nodes, 1)
        self._tainted: set[str] = set()
        self.restore()

    def steps(self) -> Iterator[tuple[float, str]]:
        """Yield the changes that are possible now."""
        for name in self._nodes:
            node = self._node(name)
            yield WEIGHT, f"admins {'add' if node is None else 'remove'} {name}"
            if node is not None:
                yield WEIGHT, f"admins {'open' if node.spec.unschedulable else 'cordon'} {name}"
            yield WEIGHT, f"plugin {'withdraws' if self._published(name) else 'publishes'} {name}"
            yield WEIGHT, f"plugin {'untaints' if name in self._tainted else 'taints'} {name}"
        for kind, what in ((DeviceClass, CLASS), (DeviceTaintRule, RULE)):
            yield WEIGHT / 2, f"admins {'remove' if self._server.objects(kind) else 'add'} {what}"

    def take(self, verb: str, what: str) -> bool:
        """Make a change; return False when it is not possible now."""
        if f" {verb} {what}" not in {step.removeprefix("admins").removeprefix("plugin") for _, step in self.steps()}:
            return False
        if what == CLASS:
            self._toggle(verb, self._class)
        elif what == RULE:
            self._toggle(verb, _rule())
        elif verb in ("add", "remove"):
            self._toggle(verb, self._nodes[what])
        elif verb in ("open", "cordon"):
            spec = msgspec.structs.replace(self._nodes[what].spec, unschedulable=verb == "cordon")
            self._server.put_around(msgspec.structs.replace(self._nodes[what], spec=spec))
        elif verb == "withdraws":
            self._server.remove_around(ResourceSlice, self._slices[what].key)
        else:
            if verb != "publishes":
                (self._tainted.add if verb == "taints" else self._tainted.discard)(what)
            self._publish(what)
        return True

    def restore(self) -> None:
        """Take all changes back."""
        self._tainted.clear()
        for name, node in self._nodes.items():
            if self._node(name) is None or self._server.around[Node][name].spec != node.spec:
                self._server.put_around(node)
            self._publish(name)
        if not self._server.objects(DeviceClass):
            self._server.put_around(self._class)
        for key in list(self._server.objects(DeviceTaintRule)):
            self._server.remove_around(DeviceTaintRule, key)

    def is_closed(self, name: str) -> bool:
        """Whether kube-scheduler sends no pod to a node."""
        node = self._node(name)
        return node is None or node.spec.unschedulable

    def _node(self, name: str) -> Node | None:
        found: Node | None = self._server.around[Node].get(name)
        return found

    def _published(self, name: str) -> bool:
        return self._slices[name].key in self._server.objects(ResourceSlice)

    def _publish(self, name: str) -> None:
        made = self._slices[name]
        first, *others = made.spec.devices
        if name in self._tainted:
            first = msgspec.structs.replace(first, taints=[*first.taints, BROKEN])
        self._generation[name] += 1
        pool = msgspec.structs.replace(made.spec.pool, generation=self._generation[name])
        spec = msgspec.structs.replace(made.spec, pool=pool, devices=[first, *others])
        self._server.put_around(msgspec.structs.replace(made, spec=spec))

    def _toggle(self, verb: str, item: Node | DeviceClass | DeviceTaintRule) -> None:
        if verb == "add":
            self._server.put_around(item)
        else:
            self._server.remove_around(type(item), item.key)


def _rule() -> DeviceTaintRule:
    document = {"deviceSelector": {}, "taint": {"key": BROKEN.key, "effect": BROKEN.effect}}
    return msgspec.convert({"metadata": msgspec.to_builtins(ObjectMeta(name=RULE)), "spec": document}, DeviceTaintRule)
