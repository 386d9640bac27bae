"""Why something cannot be served, or is not taken into account: the words for it, shared by Events and all commands.

Each says what was seen, and what to do about it if that is not obvious. Other modules find out what is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from heapq import nsmallest
from typing import Final

from dracaena.api import limits
from dracaena.api.foreign_names import instead_of_class
from dracaena.api.names import CONFIG_GROUP

HELP: Final = ". What would help: "
"""Between why a pod waits and what would help it. Remedies contain no semicolon."""


MOST_HELP_BYTES: Final = limits.EVENT_NOTE_BYTES // 2
"""Of an Event: three remedies with long names of nodes. The rest says why."""


def with_help(why: str, remedies: Sequence[str]) -> str:
    """Return why a pod waits, and what would help it, as it fits into an Event. A remedy that is cut would be untrue:
    why the pod waits is cut first, and remedies beyond MOST_HELP_BYTES are left out. A selector that the reason quotes
    may have any text, HELP too; it names no remedy."""
    why = why.replace(HELP, HELP.lower())
    said = next((said for said in _helps(remedies) if len(said.encode()) <= MOST_HELP_BYTES), "")
    return cut_bytes(why, limits.EVENT_NOTE_BYTES - len(said.encode())) + said


def _helps(remedies: Sequence[str]) -> Iterator[str]:
    """Yield the remedies in words: all, then fewer and fewer."""
    return (HELP + "; ".join(remedies[:count]) for count in range(len(remedies), 0, -1))


def without_help(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the two parts of what with_help() made."""
    why, _, remedies = text.partition(HELP)
    return why, tuple(remedies.split("; ")) if remedies else ()


def cut_bytes(text: str, limit_bytes: int) -> str:
    """Cut a text to a number of UTF-8 bytes on a character boundary, with three dots where something was cut. What
    UTF-8 cannot encode, a lone surrogate, becomes a question mark."""
    raw = text.encode(errors="replace")
    if len(raw) <= limit_bytes:
        return raw.decode()
    return raw[: limit_bytes - 3].decode(errors="ignore") + "..."


NEARNESS: Final = 0.8
"""How much of two names has to be alike, as difflib counts, for one to count as the other misspelt: two swapped letters
in eight do, another word does not."""

MISSPELT: Final = 0.9
"""The same for names that may be right, because what is not in the input may be in the cluster."""

MOST_COMPARED: Final = 50
"""Names that are compared letter by letter with an unknown one, 60 µs each: those whose beginning and end are most like
it. A misspelt name begins and ends like the right one."""

CREATE_IT: Final = "create it"


def no_class(name: str, known: Iterable[str], driver: str) -> str:
    """Say that a DeviceClass does not exist; `known` are the existing ones."""
    hint = instead_of_class(name, driver) or _meant(name, known) or "an admin has to create it"
    return f"DeviceClass {name} does not exist: {hint}"


def class_not_in_input(name: str, known: Iterable[str], driver: str) -> str | None:
    """Say that manifests name a DeviceClass that is not among them, if it is another system's or nearly a known one;
    otherwise None, because the cluster may have it."""
    foreign = instead_of_class(name, driver)
    if foreign is None:
        return not_in_input("DeviceClass", name, known)
    return f"DeviceClass {name} is not in the input: {foreign}"


def no_template(key: str, known: Iterable[str]) -> str:
    """Say that a ResourceClaimTemplate, by `namespace/name`, does not exist; `known` are the names in its namespace."""
    hint = _meant(key.rpartition("/")[2], known) or CREATE_IT
    return f"ResourceClaimTemplate {key} does not exist: {hint}"


def not_in_input(kind: str, name: str, known: Iterable[str]) -> str | None:
    """Say that manifests name an object that is not among them, if its name is nearly a known one; otherwise None,
    because the cluster may have it."""
    hint = _meant(name, known, MISSPELT)
    return hint and f"{kind} {name} is not in the input: {hint}"


def _meant(name: str, known: Iterable[str], nearness: float = NEARNESS) -> str | None:
    near = nearest(name, known, nearness)
    return near and f"did you mean {near}?"


def no_claim(key: str) -> str:
    """Say that a ResourceClaim that a pod names, by `namespace/name`, does not exist."""
    return f"claim {key} does not exist: {CREATE_IT}"


def nearest(name: str, known: Iterable[str], nearness: float = NEARNESS) -> str | None:
    """Return the known name that an unknown one most likely means; None when none is near. Cost: some 5 µs for each
    known name, and 60 µs for each of MOST_COMPARED."""
    likely = nsmallest(MOST_COMPARED, known, key=lambda one: (-_ends_alike(name, one), one))
    return next(iter(get_close_matches(name, sorted(likely), n=1, cutoff=nearness)), None)


def _ends_alike(name: str, other: str) -> int:
    """Return how many characters two names share at their beginning and at their end."""
    return _begin_alike(name, other) + _begin_alike(name[::-1], other[::-1])


def _begin_alike(name: str, other: str) -> int:
    pairs = enumerate(zip(name, other, strict=False))
    return next((place for place, (one, another) in pairs if one != another), min(len(name), len(other)))


@dataclass(frozen=True, slots=True)
class ReadName:
    """An attribute or capacity that an expression, a constraint or an amount reads of a device."""

    group: str
    """`attributes` or `capacity`, where all names are fully qualified; `requests`: keys of capacity.requests, which the
    API compares letter by letter with what is published."""
    domain: str
    """Empty if the group is `requests`."""
    name: str | None
    """None: any of the domain."""

    @property
    def qualified(self) -> str:
        """`domain/name`, or the domain alone; for the group `requests` the key."""
        return "/".join(filter(None, (self.domain, self.name)))

    @classmethod
    def of_constraint(cls, attribute: str) -> ReadName:
        """Return what matchAttribute or distinctAttribute names, fully qualified."""
        domain, _, name = attribute.partition("/")
        return cls("attributes", domain, name)

    @classmethod
    def of_request(cls, key: str) -> ReadName:
        """Return what a key of capacity.requests names."""
        return cls("requests", "", key)

    @classmethod
    def of_paths(cls, paths: Iterable[Sequence[str]]) -> tuple[ReadName, ...]:
        """Return what an expression reads, from the paths of its footprint; without paths that have no domain."""
        named = (path for path in paths if path and path[0] in ("attributes", "capacity") and len(path) > 1)
        return tuple(cls(path[0], path[1], path[2] if len(path) > 2 else None) for path in named)

    def is_among(self, known: Collection[str]) -> bool:
        """Return whether fully qualified names include this one, or any of the domain."""
        if self.name is not None:
            return self.qualified in known
        return any(one.startswith(f"{self.domain}/") for one in known)


_NO_ATTRIBUTE: Final = "no GPU has the attribute"
_NO_CAPACITY: Final = "no GPU has the capacity"
_NO_ATTRIBUTES: Final = "no GPU has attributes of the domain"
_NO_CAPACITIES: Final = "no GPU has capacities of the domain"


def unknown_name(read: ReadName, known: Collection[str]) -> str:
    """Say that no GPU has what is read. `known` are the names that GPUs have in this group."""
    if read.name is None:
        domains = sorted({name.partition("/")[0] for name in known})
        theirs = f": their domains are {', '.join(domains)}" if domains else ""
        return f"{_NO_ATTRIBUTES if read.group == 'attributes' else _NO_CAPACITIES} {read.domain}{theirs}"
    # Domains are long: most letters of two names with the same domain would be alike, whatever the names.
    by_name = {name.rpartition("/")[2]: name for name in sorted(known, reverse=True)}
    own = read.name.rpartition("/")[2]
    near = own if own in by_name else nearest(own, by_name)
    meant = None if near is None else by_name[near]
    hint = "" if meant is None else f": did you mean {meant}?"
    return f"{_NO_ATTRIBUTE if read.group == 'attributes' else _NO_CAPACITY} {read.qualified}{hint}"


def more_unknown_names(count: int) -> str:
    """Say how many more names no GPU has."""
    return f"and {count} more {'name' if count == 1 else 'names'} that no GPU has"


IGNORED_EVENT: Final = "ClaimPartsIgnored"
"""Reason of the one Event on a pod about all parts of its claims and containers that have no effect."""


NVIDIA_DRIVER: Final = "gpu.nvidia.com"


def foreign_config(other: str, driver: str) -> str:
    """Say that a configuration is for a driver that serves none of its requests.

    Its parameters may be unknown here, so the text only says in general what to write instead of NVIDIA's.
    """
    text = f"the configuration for {other} does nothing: all of its requests get devices of {driver}"
    if other != NVIDIA_DRIVER:
        return text
    instead = f"opaque: {{driver: {driver}, parameters: {{apiVersion: {CONFIG_GROUP}/v1alpha1, kind: GpuConfig, …}}}}"
    return f"{text}; to share a GPU write `{instead}` and `capacity` in the request"


def whole_gpu() -> str:
    """Say what capacity.requests do if nothing can be shared."""
    return "no GPU can be shared: capacity.requests only say how large one has to be, and all of it is taken"


def dead_alternative(why: str) -> str:
    """Say that an alternative is never chosen."""
    return f"this alternative is never taken: {why}"


NO_SUCH_GPU: Final = "its class and selectors match no GPU"


def too_few_gpus(node: str, count: int, largest: int, which: str = "") -> str:
    """Say that no node has `count` GPUs, in use or not. `node`: the nodes that this is about, `no node` for all;
    `which`: which of their GPUs count, all of them if empty."""
    gpus = "1 GPU" if count == 1 else f"{count} GPUs"
    return f"{node} has {gpus}{which}, the largest has {largest}"


MATCHING: Final = " that its class and selectors match"
"""Which GPUs count, for too_few_gpus()."""


LARGE_ENOUGH: Final = f"{MATCHING} and that are large enough"
"""The same for a request that wants an amount of each."""


def too_small_gpus(amount: str, largest: str, which: str = "") -> str:
    """Say that no GPU has that much of a capacity, in use or not; amounts in words, `which` as for too_few_gpus()."""
    return f"no GPU{which} has {amount}, the largest has {largest}"


NO_GPU_FOR_AMOUNTS: Final = f"no GPU{MATCHING} can give these amounts of its capacities together"


def unknown_fields(names: str, what: str) -> str:
    """Say that fields of a slice are not known, and what follows."""
    return f"{names}: unknown to this version: {what} is left alone"


def of_untainted(text: str) -> str:
    """Return words about free GPUs, changed so that they are about those whose taints the claims tolerate: the others
    are free, too, and may be enough."""
    return text.replace(" free ", " free, untainted ")


def all_tainted(*, free: bool) -> str:
    """Say that a node has no GPU for a pod that wants one, because of taints; `free`: some of its free GPUs are all
    that is tainted, else each GPU is."""
    return f"whose{' free' if free else ''} GPUs all have taints that the claim does not tolerate"


def unused_request(request: str, claim: str) -> str:
    """Say that a request of a claim, by the pod's name for it, is in no container's resources.claims."""
    return f"no container names request {request} of claim {claim}: its devices are taken, and no container sees them"


def unknown_request(request: str, claim: str, known: Iterable[str]) -> str:
    """Say that a container names a request that the claim, by the pod's name for it, does not have."""
    there = ", ".join(sorted(known)) or "none"
    return f"no request {request} in claim {claim} (there: {there}): the container gets nothing by that name"
