"""Which parts of a device an expression can read, determined without evaluating it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dracaena.cel.ast import Bind, Fold, Ident, Index, Literal, Select, SyntaxNode
from dracaena.cel.device import DeviceView, Version

# A path from the device: () is the device, ("attributes",) all attributes, ("attributes", domain) those of a domain,
# ("attributes", domain, name) one of them.
Path = tuple[str, ...]

_DEPTH: Final = 3


@dataclass(frozen=True, slots=True)
class Footprint:
    """The parts of a device that an expression can read, as paths in alphabetical order; no path lies within another.

    Devices with equal `key`s get the same answer, as long as their data is valid.
    """

    paths: tuple[Path, ...]
    everything: bool = field(init=False)
    """Whether it can read all attributes or all capacities, so that remembering answers saves nothing."""
    _readers: tuple[Callable[[DeviceView], Hashable], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "everything", any(path in _TOO_MUCH for path in self.paths))
        object.__setattr__(self, "_readers", tuple(map(_reader, self.paths)))

    def key(self, device: DeviceView) -> Hashable:
        """What the expression can see of the device, as one value to compare and look up by."""
        return tuple([read(device) for read in self._readers])


_GROUPS: Final = ("attributes", "capacity")
_TOO_MUCH: Final[tuple[Path, ...]] = ((), ("attributes",), ("capacity",))


def _reader(path: Path) -> Callable[[DeviceView], Hashable]:
    """Return a function that reads one part of a device as a value, equal only to the same part of an equal device."""
    if path == ("driver",):
        return lambda device: device.driver
    if path == ("allowMultipleAllocations",):
        return lambda device: device.allow_multiple_allocations
    if not path:
        return _whole
    domains: Callable[[DeviceView], _Domains] = _attributes if path[0] == "attributes" else _capacity
    if len(path) == 1:
        return lambda device: _all(domains(device))
    domain = path[1]
    if len(path) == 2:
        return lambda device: _names(domains(device).get(domain, {}))
    name = path[2]
    return lambda device: _tagged(domains(device).get(domain, {}).get(name))


_Domains = Mapping[str, Mapping[str, Any]]


def _attributes(device: DeviceView) -> _Domains:
    return device.attributes


def _capacity(device: DeviceView) -> _Domains:
    return device.capacity


def _whole(device: DeviceView) -> Hashable:
    return device.driver, device.allow_multiple_allocations, _all(device.attributes), _all(device.capacity)


def _all(domains: _Domains) -> Hashable:
    return tuple((domain, _names(domains[domain])) for domain in sorted(domains))


def _names(names: Mapping[str, Any]) -> Hashable:
    return tuple((name, _tagged(names[name])) for name in sorted(names))


def _tagged(value: Any) -> Hashable:
    """In Python True == 1, so values are paired with their types; text equals nothing else."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is Version:
        return (Version, value.text)
    if kind is tuple:
        return tuple(map(_tagged, value))
    return (kind, value)


def footprint_of(root: SyntaxNode) -> Footprint:
    """The footprint of a checked expression."""
    finder = _Finder()
    finder.visit(root)
    found = {path for path in finder.found if not any(path[:length] in finder.found for length in range(len(path)))}
    return Footprint(tuple(sorted(found)))


class _Finder:
    def __init__(self) -> None:
        self.found: set[Path] = set()
        self._seen: set[SyntaxNode] = set()
        self._names: list[tuple[str, Path | None]] = []

    def visit(self, node: SyntaxNode) -> None:
        """Record what the node and everything below it reads."""
        if node in self._seen:
            return
        self._seen.add(node)
        path = self._path(node)
        if path is not None:
            self.found.add(path)
            self._visit_indexes(node)
        elif isinstance(node, Bind):
            self._visit_bind(node)
        elif isinstance(node, Fold):
            self.visit(node.range)
            self._names.extend((name, None) for name in node.names)
            for part in (node.condition, node.transform):
                if part is not None:
                    self.visit(part)
            del self._names[len(self._names) - len(node.names) :]
        else:
            for child in node.children:
                self.visit(child)

    def _visit_bind(self, node: Bind) -> None:
        """A variable that is a part of the device stands for that part, wherever it is used."""
        alias = self._path(node.value)
        if alias is None:
            self.visit(node.value)
        else:
            self._visit_indexes(node.value)
        self._names.append((node.name, alias))
        self.visit(node.body)
        self._names.pop()

    def _visit_indexes(self, node: SyntaxNode) -> None:
        """Record what the computed indexes within a path read."""
        while isinstance(node, Select | Index):
            if isinstance(node, Index):
                self.visit(node.index)
            node = node.operand

    def _path(self, node: SyntaxNode) -> Path | None:
        """The part of the device that the node stands for, as far as names tell; None if it is something else."""
        keys: list[str | None] = []
        while isinstance(node, Select | Index):
            keys.append(node.field_name if isinstance(node, Select) else _constant_key(node.index))
            node = node.operand
        if not isinstance(node, Ident):
            return None
        root = self._root(node)
        if root is None:
            return None
        path = list(root)
        for key in reversed(keys):
            if key is None or len(path) == _DEPTH or (path and path[0] not in _GROUPS):
                break
            path.append(key)
        return tuple(path)

    def _root(self, node: Ident) -> Path | None:
        if not node.rooted:
            for name, path in reversed(self._names):
                if name == node.name:
                    return path
        return () if node.name == "device" else None


def _constant_key(index: SyntaxNode) -> str | None:
    return index.value if isinstance(index, Literal) and isinstance(index.value, str) else None
