"""Judges why a pod is said to wait: each counted statement must be true of the objects.

    judge({"cluster": …, "pod": …, "claims": […], "barred": {…}}, {"nodes": 2, "reasons": […], "never": "", …})

returns what is untrue, one line each. A reason may be coarser than what the judge finds, as long as its words hold. A
text that the judge does not know is untrue, so that nobody adds one without saying when it holds. What it cannot work
out from the objects it takes as told: why nodes are barred (other pods' turns, earlier tries), and where a search was
cut off.

A free GPU is one that nobody has, whatever its taints: words about the others say `untainted`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice
from typing import Any

from support.reasons.asking import Asking, Request, evaluated
from support.reasons.facts import Cluster, Device, NodeFacts
from support.reasons.nodes import Json, affinity_of, is_cordoned, lacks_labels, selects, untolerated

MOST_SETS = 20_000
"""Sets of GPUs that are tried by force: more than there are of 16."""

Holds = Callable[["Node", re.Match[str]], bool]


@dataclass(frozen=True)
class Node:
    """A node as one pod sees it."""

    asking: Asking
    facts: NodeFacts
    barred: str | None

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.facts.devices

    def offered(self) -> list[Device]:
        return [one for one in self.devices if one.is_offered_whole and one.driver == self.asking.cluster.driver]

    def is_kept_off(self, device: Device) -> bool:
        """Whether no request tolerates its taints."""
        requests = self.asking.requests or ()
        return all(device.is_kept_off(one.tolerations) for one in requests)

    def is_own(self, device: Device) -> bool:
        """Whether the pod has it."""
        return any(
            (one["driver"], one["pool"], one["device"]) == (device.driver, device.pool, device.name)
            for allocation in self.asking.allocated
            for one in allocation["devices"]["results"]
        )

    def free(self, *, untainted: bool = False) -> list[Device]:
        return [one for one in self.offered() if one.is_unheld and not (untainted and self.is_kept_off(one))]

    def served(self, devices: Sequence[Device], *, tainted: bool = False) -> int:
        """How many devices the requests for a number get of these at most, each one once."""
        requests = [one for one in self.asking.requests or () if not (one.takes_all or one.is_admin)]
        slots = [one for one in requests for _ in range(one.count)]
        taken: dict[int, int] = {}

        def place(slot: int, seen: set[int]) -> bool:
            for number, device in enumerate(devices):
                if number in seen or not slots[slot].matches(device, tainted=tainted):
                    continue
                seen.add(number)
                if number not in taken or place(taken[number], seen):
                    taken[number] = slot
                    return True
            return False

        return sum(place(slot, set()) for slot in range(len(slots)))


def judge(case: Json, told: Json) -> list[str]:
    """Return what is untrue in the reasons `told` for a case. A case may have several `clusters`, as they were while
    reasons were worked out: each statement has to be true of one."""
    clusters = [Cluster(**one) for one in case["clusters"]]
    views = [_views(one, case) for one in clusters]
    found = [*_counts(told, views), *_cluster_statements(told, views)]
    return list(dict.fromkeys(found))


def judge_refusal(case: Json, text: str) -> list[str]:
    """Return what is untrue in why no decision is possible until somebody acts, as far as objects can tell."""
    clusters = [Cluster(**one) for one in case["clusters"]]
    found = re.search(r"DeviceClass (\S+) does not exist", text)
    if found is not None and all(any(c["metadata"]["name"] == found[1] for c in one.classes) for one in clusters):
        return [f"it exists: {text}"]
    found = re.search(r"selector (?P<quote>['\"])(?P<expression>.*)(?P=quote) has no answer for a device", text)
    if found is not None and "\\" not in found["expression"]:
        devices = [device for one in clusters for facts in one.facts.values() for device in facts.devices]
        if devices and not any(evaluated(found["expression"], device) is None for device in devices):
            return [f"it has one for each device: {text}"]
    return []


COMPARED = re.compile(
    r"worse in .*|that come later by name.*|that can offer nothing better, .*|that were not examined .*"
    r"|already examined in an earlier attempt|equal, and later by name"
    r"|left out by the pod's selectors, affinity or volumes|with too little of what the pod needs besides devices"
    r"|where its shares would leave .*|where less could be cut .*"
)
"""What nodes are said to be beside the one that was taken, which objects alone do not tell."""


def judge_census(case: Json, winner: str, told: Sequence[tuple[str, int]]) -> list[str]:
    """Return what is untrue in why nodes but the winner were not taken: reasons with their counts."""
    (cluster,) = (Cluster(**one) for one in case["clusters"])
    views = _views(cluster, case)
    names = sorted(views.keys() - {winner})
    total = sum(count for _, count in told)
    found = [] if total == len(names) else [f"there are {len(names)} other nodes, {total} are counted"]
    able: list[tuple[int, list[str]]] = []
    for text, count in told:
        holds = statement(text)
        if COMPARED.fullmatch(text):
            able.append((count, names))
            continue
        true = [name for name in names if _is_true(text, holds, views[name])]
        able.append((count, true))
        if holds is None and not true:
            found.append(f"the judge does not know the reason {text!r}")
        elif count > len(true):
            found.append(f"{count} nodes {text}: only {true}")
    return found if _dealt(able) else [*found, "no way to count each other node once under a reason that is true of it"]


def _views(cluster: Cluster, case: Json) -> dict[str, Node]:
    asking = Asking.of(cluster, case["pod"], case["claims"])
    barred = case.get("barred") or {}
    return {name: Node(asking, facts, barred.get(name)) for name, facts in cluster.facts.items()}


def _counts(told: Json, views: Sequence[Mapping[str, Node]]) -> Iterator[str]:
    names = sorted({name for view in views for name in view})
    total = sum(one["count"] for one in told["reasons"])
    if len(views) == 1 and (told["nodes"] != len(names) or total != len(names)):
        yield f"there are {len(names)} nodes, {told['nodes']} are said to be, {total} are counted"
    able: list[list[str]] = []
    for one in told["reasons"]:
        text, holds = one["text"], statement(one["text"])
        is_known = holds is not None or any(node.barred == text for view in views for node in view.values())
        if not is_known:
            yield f"the judge does not know the reason {one['text']!r}"
            able.append(names)
            continue
        if one.get("lasting") and re.search(r"\bfree\b", one["text"].partition("even with")[0]):
            yield f"lasting, and about what is free: {one['text']}"
        true = [name for name in names if any(name in view and _is_true(text, holds, view[name]) for view in views)]
        able.append(true)
        for name in one["nodes"]:
            if name not in true:
                yield f"untrue of {name}: {one['text']}"
        if one["count"] > len(true):
            yield f"{one['count']} nodes {one['text']}: only {true}"
    if not _dealt([(one["count"], of) for one, of in zip(told["reasons"], able, strict=True)]):
        yield "no way to count each node once under a reason that is true of it"
    others_rule = any("another pod's" in one["text"] for one in told["reasons"])  # the judge does not see those pods
    if len(views) == 1 and not others_rule:
        yield from (f"the pod fits on {name}" for name, node in views[0].items() if surely_fits(node))


def _is_true(text: str, holds: Callable[[Node], bool] | None, node: Node) -> bool:
    return node.barred == text or (holds is not None and holds(node))


def _dealt(wanted: Sequence[tuple[int, Sequence[str]]]) -> bool:
    """Whether each node can be given to one reason that is true of it, so that each has as many as it counts."""
    slots = [names for count, names in wanted for _ in range(count)]
    if len(slots) > 64:
        return all(count <= len(names) for count, names in wanted)
    owner: dict[str, int] = {}

    def place(slot: int, seen: set[str]) -> bool:
        for name in slots[slot]:
            if name not in seen:
                seen.add(name)
                if name not in owner or place(owner[name], seen):
                    owner[name] = slot
                    return True
        return False

    return all(place(slot, set()) for slot in range(len(slots)))


def surely_fits(node: Node) -> bool:
    """Whether a node serves the pod beyond doubt: nothing but counts, selectors and amounts is asked for, one request
    gets whole GPUs that nobody has, and nothing keeps the pod off. False where the judge cannot tell."""
    asking = node.asking
    spec = asking.spec
    if not asking.is_plain or node.barred or spec.get("nodeName") or len(asking.requests or ()) != 1:
        return False
    if not _is_allowed_there(node):
        return False
    (request,) = asking.requests or ()
    if request.capacity or any(one.document.get("consumesCounters") for one in node.devices):
        whole = [
            one for one in node.free() if not one.document.get("consumesCounters") and _is_large_enough(request, one)
        ]
    else:
        whole = node.free()
    whole = [one for one in whole if request.matches(one) and not one.document.get("bindingConditions")]
    if any(evaluated(each, one) is None for each in request.expressions for one in node.devices):
        return False
    if any(map(_is_partitioned, whole)):
        return False
    return len(whole) >= request.count and _has_room(node)


def _is_allowed_there(node: Node) -> bool:
    """Whether neither the node nor other pods or volumes keep the pod off; False where a document of the pod is none of
    the API's."""
    spec, document = node.asking.spec, node.facts.document
    try:
        wanted = affinity_of(spec)
        if is_cordoned(spec, document) or untolerated(spec, document) or lacks_labels(spec, document):
            return False
        if wanted is not None and not selects(wanted, document):
            return False
        return node.asking.cluster.placement.reason(node.asking.pod, node.facts.name) is None
    except (AttributeError, LookupError, TypeError, ValueError):
        return False


def _is_large_enough(request: Request, device: Device) -> bool:
    capacity = device.left()
    return all(name in capacity and amount <= capacity[name] for name, amount in request.capacity.items()) and not any(
        one.get("requestPolicy", {}).get("validValues") or one.get("requestPolicy", {}).get("validRange")
        for one in device.document.get("capacity", {}).values()
    )


# What each reason means

_STATEMENTS: list[tuple[re.Pattern[str], Holds]] = []


def _means(pattern: str) -> Callable[[Holds], Holds]:
    def note(holds: Holds) -> Holds:
        _STATEMENTS.append((re.compile(pattern), holds))
        return holds

    return note


def statement(text: str) -> Callable[[Node], bool] | None:
    """Return when a reason, in words that follow a count of nodes, is true of a node that is not barred for it; None
    for an unknown one."""
    for pattern, holds in _STATEMENTS:
        found = pattern.fullmatch(text)
        if found is not None:
            return partial(_holds_of, holds, found)
    return None


def _holds_of(holds: Holds, found: re.Match[str], node: Node) -> bool:
    return holds(node, found)


def _number(found: re.Match[str], name: str = "n") -> int:
    return int(found[name])


@_means(r"other than the node of a claim that is already allocated")
def _pinned(node: Node, _: re.Match[str]) -> bool:
    pins = [one.get("nodeSelector") for one in node.asking.allocated]
    return any(pin is not None and not selects(pin, node.facts.document) for pin in pins)


@_means(r"without usable GPUs of (?P<driver>.+)")
def _unusable(node: Node, found: re.Match[str]) -> bool:
    own = [one for one in node.devices if one.driver == node.asking.cluster.driver]
    return found["driver"] == node.asking.cluster.driver and not any(one.is_ours and one.is_readable for one in own)


@_means(r"whose GPUs kube-scheduler allocates \(no taint of ours\)")
def _left_to_scheduler(node: Node, _: re.Match[str]) -> bool:
    key = node.asking.cluster.own_key
    taints = [one for device in node.facts.published for one in device.get("taints", ())]
    return bool(node.facts.published) and not any(
        one["key"] == key and one.get("effect") in ("NoSchedule", "NoExecute") for one in taints
    )


@_means(r"cordoned")
def _cordoned(node: Node, _: re.Match[str]) -> bool:
    return is_cordoned(node.asking.spec, node.facts.document)


@_means(r"with taint (?P<key>\S+) that the pod does not tolerate")
def _tainted(node: Node, found: re.Match[str]) -> bool:
    return found["key"] in untolerated(node.asking.spec, node.facts.document)


@_means(r"not named by the pod")
def _not_named(node: Node, _: re.Match[str]) -> bool:
    named = node.asking.spec.get("nodeName")
    return bool(named) and named != node.facts.name


@_means(r"not matching the pod's nodeSelector")
def _not_selected(node: Node, _: re.Match[str]) -> bool:
    return lacks_labels(node.asking.spec, node.facts.document)


@_means(r"not matching the pod's node affinity(?P<unread>, which cannot be read whole: .*)?")
def _not_near(node: Node, found: re.Match[str]) -> bool:
    wanted = affinity_of(node.asking.spec)
    if found["unread"]:
        return (node.asking.spec.get("affinity") or {}).get("nodeAffinity") is not None
    return wanted is not None and not selects(wanted, node.facts.document)


@_means(
    r"not matching the pod's podAffinity|not matching the pod's podAntiAffinity"
    r"|where another pod's podAntiAffinity keeps this one away"
    r"|not matching the pod's topologySpreadConstraints|without a label that the pod's topologySpreadConstraints name"
    r"|while another pod uses a ReadWriteOncePod volume of this pod"
    r"|while a PersistentVolumeClaim of the pod (does not exist|is not bound)"
    r"|while a PersistentVolume of the pod does not exist"
    r"|not matching the node affinity of the pod's PersistentVolumes|outside the zones of the pod's PersistentVolumes"
    r"|without a PersistentVolume that the pod's claims could have there"
)
def _placement(node: Node, found: re.Match[str]) -> bool:
    placement, pod, name = node.asking.cluster.placement, node.asking.pod, node.facts.name
    return found[0] in (
        placement.of_volumes(pod, name),
        placement.of_spread(pod, name),
        placement.of_affinity(pod, name),
    )


def _amounts(node: Node) -> Iterator[tuple[str, int, int | None, int]]:
    """Each resource that the pod asks for: how much, how much the node has, and how much of that is taken."""
    room = node.asking.cluster.room.get(node.facts.name) or {}
    has = room.get("has")
    for name, amount in (room.get("wanted") or {}).items():
        yield name, amount, None if has is None else has.get(name, 0), (room.get("used") or {}).get(name, 0)


def _lacks(node: Node, *, ever: bool = False) -> list[str]:
    return [
        name for name, amount, has, used in _amounts(node) if has is not None and has - (0 if ever else used) < amount
    ]


def _has_room(node: Node) -> bool:
    return not _lacks(node) and not (node.asking.cluster.room.get(node.facts.name) or {}).get("wantsPorts")


def _listed(text: str) -> list[str]:
    return re.split(r", | and ", text)


@_means(r"with too little free (?P<what>.+)")
def _short(node: Node, found: re.Match[str]) -> bool:
    return set(_listed(found["what"])) <= set(_lacks(node))


@_means(r"that have less (?P<what>.+) than the pod needs, even when nothing else runs there")
def _too_small(node: Node, found: re.Match[str]) -> bool:
    return set(_listed(found["what"])) <= set(_lacks(node, ever=True))


@_means(r"that already run as many pods as they may")
def _full(node: Node, _: re.Match[str]) -> bool:
    return "pods" in _lacks(node)


@_means(r"whose port (?P<n>\d+)/(?P<protocol>\w+) is in use")
def _port(node: Node, found: re.Match[str]) -> bool:
    ports = (node.asking.cluster.room.get(node.facts.name) or {}).get("ports") or ()
    return [_number(found), found["protocol"]] in ports


# Whole GPUs


@_means(r"with(out a| fewer than (?P<n>\d+)) GPUs?(?P<besides> besides those that the pod has)?")
def _few(node: Node, found: re.Match[str]) -> bool:
    own = [one for one in node.offered() if found["besides"] and node.is_own(one)]
    return len(node.offered()) - len(own) < int(found["n"] or 1)


@_means(r"with (?P<n>\d+) or more GPUs, fewer than \d+ of them (?P<what>free|free and untainted|without taints .*)")
def _few_free(node: Node, found: re.Match[str]) -> bool:
    offered, wanted = node.offered(), _number(found)
    if found["what"] == "free":
        left = node.free()
    elif found["what"] == "free and untainted":
        left = node.free(untainted=True)
    else:
        left = [one for one in offered if not node.is_kept_off(one)]
    return len(offered) >= wanted > len(left)


@_means(r"whose (?P<free>free )?GPUs all have taints that the claim does not tolerate")
def _all_tainted(node: Node, found: re.Match[str]) -> bool:
    meant = node.free() if found["free"] else node.offered()
    return bool(meant) and all(map(node.is_kept_off, meant))


@_means(r"with(out a| fewer than (?P<n>\d+)) free(?P<untainted>, untainted)? (?P<whole>whole )?GPUs?")
def _none_free(node: Node, found: re.Match[str]) -> bool:
    free = node.free(untainted=bool(found["untainted"]))
    return sum(not (found["whole"] and one.allows_shares) for one in free) < int(found["n"] or 1)


@_means(
    r"with(out| (?P<served>\d+) of) (?P<n>\d+) (free,? (untainted )?)?(whole )?GPUs that the requests accept"
    r"( besides .+)?"
)
def _accepted(node: Node, found: re.Match[str]) -> bool:
    is_now = "free" in found[0]
    devices = [one for one in (node.free() if is_now else node.offered()) if not node.is_own(one)]
    served = node.served(devices, tainted=not is_now)
    if found["served"] is None:
        return served < _number(found)
    # Of requests with amounts or for parts, only some are meant.
    return served <= int(found["served"]) < _number(found) if _number(found) == node.asking.count else True


@_means(
    r"with(out)? (an? |(?P<n>\d+) )(?P<free>free(?P<untainted>, untainted)? )?(whole )?GPUs? that (agree in|has) "
    r"(?P<names>.+?)( besides those that the pod has)?"
)
def _agree(node: Node, found: re.Match[str]) -> bool:
    wanted, names = int(found["n"] or 1), found["names"].split(", ")
    devices = node.free() if found["free"] else node.offered()
    devices = [one for one in devices if not (found["untainted"] and node.is_kept_off(one))]
    meant = [one for one in devices if any(each.matches(one, tainted=True) for each in node.asking.requests or ())]
    groups: dict[tuple[Any, ...], int] = {}
    for one in meant:
        values = tuple(_qualified(one, name) for name in names)
        if None not in values:
            groups[values] = groups.get(values, 0) + 1
    return len(node.asking.requests or ()) > 1 or max(groups.values(), default=0) < wanted


def _qualified(device: Device, name: str) -> Any:
    domain, _, bare = name.rpartition("/")
    attributes = device.document.get("attributes", {})
    one = attributes.get(name) or (attributes.get(bare) if domain == device.driver else None)
    return None if not one else str(next(iter(one.items())))


@_means(r"without (?P<n>\d+) (free(, untainted)? )?(whole )?GPUs( that satisfy the constraints on (?P<names>.+))?")
def _differ(node: Node, found: re.Match[str]) -> bool:
    return bool(node.asking.requests)


@_means(
    r"(where |whose )(?P<free>free(?P<untainted>, untainted)? )?(whole )?GPUs( that agree in .+)? "
    r"do not meet (?P<words>.+)"
)
def _unlinked(node: Node, found: re.Match[str]) -> bool:
    """By force, for the one requirement that needs no figures: a set that NVLinks join."""
    if any(map(_is_partitioned, node.offered())):
        return True  # links depend on who has the others
    if found["words"] != "requirement NVLink" or len(node.asking.requests or ()) != 1 or not node.asking.count:
        return True
    (request,) = node.asking.requests or ()
    devices = node.free() if found["free"] else node.offered()
    meant = [one for one in devices if request.matches(one, tainted=not found["untainted"])]
    if len(meant) < request.count or any(
        claim["spec"]["devices"].get("constraints") for claim in node.asking.open_claims
    ):
        return True
    sets = islice(combinations(meant, request.count), MOST_SETS)
    return not any(_are_linked(one) for one in sets)


def _are_linked(devices: Sequence[Device]) -> bool:
    reached, waiting = {devices[0].name}, [devices[0]]
    while waiting:
        one = waiting.pop()
        row = str(one.attribute("nvlinks") or "")
        for other in devices:
            if other.name not in reached and _links(row, one, other):
                reached.add(other.name)
                waiting.append(other)
    return len(reached) == len(devices)


def _links(row: str, one: Device, other: Device) -> bool:
    from dracaena.api import compact

    entries = compact.decode(row) if row else ()
    place = other.attribute("ordinal")
    return place is not None and place < len(entries) and bool(entries[place])


@_means(
    r"(where )?(whose )?(free(, untainted)? )?(whole )?GPUs( that agree in .+)? "
    r"are neither a partition together nor each one by itself"
)
def _no_partition(node: Node, _: re.Match[str]) -> bool:
    return any(map(_is_partitioned, node.offered()))


def _is_partitioned(device: Device) -> bool:
    return any("partition" in name.lower() for name in device.document.get("attributes", {}))


@_means(
    r"where the search was cut off after .*|where no (set|place) that .* was found; the search was cut off after .*"
)
def _cut_off(node: Node, _: re.Match[str]) -> bool:
    return bool(node.devices)


@_means(r"without enough (free )?devices that the selectors name by their identity")
def _identities(node: Node, found: re.Match[str]) -> bool:
    devices = [one for one in node.offered() if one.is_unheld or not found[1]]
    return node.served(devices, tainted=True) < node.asking.count


@_means(r"without any device that one of the requests matches")
def _matches_nothing(node: Node, _: re.Match[str]) -> bool:
    every = node.devices
    return any(not any(each.matches(one, tainted=True) for one in every) for each in node.asking.requests or ())


# Shares


def _with_left(node: Node, request: Request, *, untainted: bool, total: bool = False) -> list[Device]:
    found = []
    for one in node.offered():
        left = {n: v - one.taken.get(n, 0) * 0 for n, v in _totals(one).items()} if total else one.left()
        if not one.allows_shares and not total:
            left = left if one.is_unheld else {}
        if untainted and one.is_kept_off(request.tolerations):
            continue
        if request.matches(one, tainted=True) and all(left.get(n, -1) >= v for n, v in request.capacity.items()):
            found.append(one)
    return found


def _totals(device: Device) -> dict[str, int]:
    from support.reasons.facts import nano

    return {name: nano(one["value"]) for name, one in device.document.get("capacity", {}).items()}


def _amount_requests(node: Node) -> list[Request]:
    return [one for one in node.asking.requests or () if one.capacity]


@_means(r"(where )?whose GPUs are not available in shares")
def _unshared(node: Node, _: re.Match[str]) -> bool:
    return not any(one.allows_shares for one in node.offered())


@_means(r"(where )?whose GPUs never have .+")
def _never_have(node: Node, _: re.Match[str]) -> bool:
    # With a policy for amounts a GPU may give more or none, so totals only refute where there is no policy.
    return any(
        not [d for d in _with_left(node, one, untainted=False, total=True) if _has_no_policy(d)]
        for one in _amount_requests(node)
    )


def _has_no_policy(device: Device) -> bool:
    return not any(one.get("requestPolicy") for one in device.document.get("capacity", {}).values())


@_means(r"(where )?without a GPU that the request may have")
def _may_have_none(node: Node, _: re.Match[str]) -> bool:
    return any(not any(one.matches(each) for each in node.offered()) for one in node.asking.requests or ())


@_means(r"(where )?without (?P<words>.+) left on one (?P<untainted>untainted )?GPU")
def _none_left(node: Node, found: re.Match[str]) -> bool:
    return any(not _joinable(node, one, untainted=bool(found["untainted"])) for one in _amount_requests(node))


@_means(r"(where )?with fewer than (?P<n>\d+) (?P<untainted>untainted )?GPUs with .+ left")
def _few_left(node: Node, found: re.Match[str]) -> bool:
    requests = _amount_requests(node)
    return any(len(_joinable(node, one, untainted=bool(found["untainted"]))) < _number(found) for one in requests)


def _joinable(node: Node, request: Request, *, untainted: bool) -> list[Device]:
    """The GPUs with as much left as one request wants. Those that are held whole, or shared in two modes, have none."""
    found = _with_left(node, request, untainted=untainted)
    return [one for one in found if not one.is_whole_held and len(one.modes) < 2]


@_means(r"(where )?whose (?P<untainted>untainted )?GPUs with .+ left are shared in another mode \((?P<modes>.+)\)")
def _other_mode(node: Node, found: re.Match[str]) -> bool:
    named = set(found["modes"].split(", "))
    return any(
        any(named & one.modes for one in _joinable(node, each, untainted=bool(found["untainted"])))
        for each in _amount_requests(node)
    )


@_means(
    r"(where )?(without room|no room was found) for everything that the pod requests at once( on untainted GPUs)?"
    r"(; the search was cut off after .*)?"
)
def _no_room(node: Node, found: re.Match[str]) -> bool:
    requests = node.asking.requests or ()
    if len(requests) != 1 or "cut off" in found[0] or not node.asking.is_plain:
        return True
    return len(_joinable(node, requests[0], untainted="untainted" in found[0])) < requests[0].count


# Parts of GPUs


@_means(r"(where )?without room on (an?|their) (?P<untainted>untainted )?GPUs? for the (?P<n>\d+ )?requested parts?")
def _no_part(node: Node, found: re.Match[str]) -> bool:
    if found["n"]:
        return True
    parts = [one for one in node.devices if one.is_ours and one.attribute("type") == "mig" and one.is_unheld]
    meant = [one for one in parts if not (found["untainted"] and node.is_kept_off(one))]
    return any(not any(each.matches(one, tainted=True) for one in meant) for each in node.asking.requests or ())


# Claims that kube-scheduler allocates


@_means(
    r"without (?P<free>free )?devices that suit "
    r"(claim (?P<claim>\S+) \(DeviceClass .+\), which kube-scheduler allocates"
    r"|all claims that kube-scheduler has to allocate for the pod)"
)
def _others_lack(node: Node, found: re.Match[str]) -> bool:
    """Refuted only where nothing but selectors and taints decides."""
    claims = [one for one in node.asking.open_claims if _key(one) == found["claim"]]
    requests = [one for one in node.asking.requests or () if one.claim == found["claim"]]
    devices = [one for one in node.facts.elsewhere if one.is_unheld or not found["free"]]
    is_plain = requests and not any(one.takes_all or one.is_admin or one.capacity for one in requests)
    if not is_plain or any(claim["spec"]["devices"].get("constraints") for claim in claims):
        return True
    if any(one.document.get("consumesCounters") or one.allows_shares for one in devices):
        return True
    suiting = [one for one in devices if any(each.matches(one) for each in requests)]
    return len(requests) > 1 or len(suiting) < requests[0].count


def _key(claim: Json) -> str:
    return f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"


# What the rules say, device by device

_RULE = re.compile(r"claim (?P<claim>\S+), request (?P<request>\S+): (?P<n>\d+) (?P<rule>.+)")


@_means(r"where (?P<every>claim \S+, request .+)")
def _by_rules(node: Node, found: re.Match[str]) -> bool:
    return all(_rule_holds(node, part) for part in found["every"].split("; "))


def _rule_holds(node: Node, part: str) -> bool:
    found = _RULE.fullmatch(part)
    if found is None:
        return part.startswith(("the search was cut off after", "pool "))
    requests = [one for one in node.asking.requests or () if found["claim"] == one.claim]
    request = next((one for one in requests if one.name == found["request"].partition("/")[0]), None)
    if request is None:
        return False
    return int(found["n"]) <= _most_refused(node, request, found["rule"])


def _most_refused(node: Node, request: Request, rule: str) -> int:
    """How many devices a rule can refuse at most."""
    every = node.devices
    match rule:
        case "in use":
            return sum(bool(one.holders) for one in every)
        case "with a taint that is not tolerated":
            return sum(one.is_kept_off(request.tolerations) for one in every)
        case "not matching the device class" | "not matching the request's selectors":
            return sum(not request.matches(one, tainted=True) for one in every)
        case "with too little of the requested capacity left":
            return sum(one.allows_shares for one in every)
        case "shared in another mode":
            # Also by another request of the pod, while all are tried together.
            return len(every) if len(_amount_requests(node)) > 1 else sum(bool(one.modes) for one in every)
        case "for which the pool's counters do not suffice":
            return sum(bool(one.document.get("consumesCounters")) for one in every)
        case "against a constraint of the claim":
            has = any(claim["spec"]["devices"].get("constraints") for claim in node.asking.open_claims)
            return len(every) if has else 0
        case "given to another request of the pod":
            return len(every)
        case "without our taint or unreadable":
            return sum(not (one.is_ours and one.is_readable) for one in every)
        case "not for this node":
            return sum(1 for one in node.asking.cluster.slices for _ in one["spec"].get("devices", ()))
    return len(every)


@_means(
    r"where claim (?P<claim>\S+): (?P<n>\d+) devices are to differ in (?P<name>\S+), "
    r"of which those that it could get have (?P<has>\d+) values"
)
def _too_few_values(node: Node, found: re.Match[str]) -> bool:
    requests = [one for one in node.asking.requests or () if one.claim == found["claim"]]
    meant = [one for one in node.devices if one.is_unheld and any(each.matches(one) for each in requests)]
    values = {_qualified(one, found["name"]) for one in meant} - {None}
    return len(values) <= int(found["has"]) < _number(found)


@_means(r"where there are fewer devices than requested")
def _fewer(node: Node, _: re.Match[str]) -> bool:
    wanted = sum(one.count for one in node.asking.requests or ())
    return node.served(node.devices) < wanted


@_means(r"where pool (?P<pool>\S+) is (?P<state>.+)")
def _pool_problem(node: Node, found: re.Match[str]) -> bool:
    names = {f"{one['spec']['driver']}/{one['spec']['pool']['name']}" for one in node.asking.cluster.slices}
    return found["pool"] in names


# What is said of the whole cluster


def _cluster_statements(told: Json, views: Sequence[Mapping[str, Node]]) -> Iterator[str]:
    for text in filter(None, (told.get("never"),)):
        if not any(_never_holds(text, view) for view in views):
            yield f"untrue: {text}"
    for text in told.get("unknown") or ():
        if not any(_unknown_holds(text, view) for view in views):
            yield f"untrue: {text}"
    for text in filter(None, (told.get("note"),)):
        if not any(_note_holds(text, view) for view in views):
            yield f"untrue: {text}"


def _never_holds(text: str, view: Mapping[str, Node]) -> bool:
    nodes = list(view.values())
    found = re.fullmatch(
        r"(?P<who>no node|no node that offers GPUs) has (?P<n>\d+) GPUs?, the largest has (?P<m>\d+)", text
    )
    if found is not None:
        counts = [len(one.offered()) for one in nodes]
        is_every = found["who"] == "no node"
        if is_every and any(len(_whole_gpus(one)) >= int(found["n"]) for one in nodes):
            return False
        return max(counts, default=0) == int(found["m"]) < int(found["n"])
    if re.fullmatch(r"no node( that offers GPUs)? could serve it with all of its GPUs free", text):
        return not any(_could_serve(one) for one in nodes)
    return False


def _whole_gpus(node: Node) -> list[Json]:
    """Whatever is published as a GPU there, by whoever is to allocate it."""
    return [one for one in node.facts.published if _type(one) == "gpu"]


def _type(device: Json) -> Any:
    return (device.get("attributes", {}).get("type") or {}).get("string")


def _could_serve(node: Node) -> bool:
    """Whether a node could serve a pod beyond doubt if nobody had anything of it and nothing were tainted."""
    asking = node.asking
    if not asking.is_plain or any(one.capacity for one in asking.requests or ()):
        return False
    whole = [one for one in node.offered() if not one.document.get("consumesCounters")]
    if any(
        evaluated(each, one) is None for r in asking.requests or () for each in r.expressions for one in node.devices
    ):
        return False
    return bool(whole) and node.served(whole, tainted=True) >= asking.count


_UNKNOWN = re.compile(
    r"no GPU has (the (?P<kind>attribute|capacity)|(?P<kinds>attributes|capacities) of the domain) "
    r"(?P<name>[^\s:]+)(:.*)?"
)


def _unknown_holds(text: str, view: Mapping[str, Node]) -> bool:
    if re.fullmatch(r"and \d+ more names? that no GPU has", text):
        return True
    found = _UNKNOWN.fullmatch(text)
    if found is None:
        return False
    group = "attributes" if (found["kind"] or found["kinds"]).startswith("attribute") else "capacity"
    known: set[str] = set()
    for node in view.values():
        for one in node.devices:
            if one.is_ours and one.driver == node.asking.cluster.driver:
                names = one.document.get(group, {})
                known |= {name if "/" in name else f"{one.driver}/{name}" for name in names}
    asked = {name for node in view.values() for one in node.asking.requests or () for name in one.capacity}
    if group == "capacity" and found["name"] in asked:  # the API compares these letter by letter
        published = (one for node in view.values() for one in node.devices)
        return not any(found["name"] in one.document.get("capacity", {}) for one in published)
    if found["kinds"]:
        return not any(name.startswith(f"{found['name']}/") for name in known)
    return found["name"] not in known


def _note_holds(text: str, view: Mapping[str, Node]) -> bool:
    memory = {
        (name, one.name): (one.left().get("memory", 0), _totals(one).get("memory", 0))
        for name, node in view.items()
        for one in node.offered()
        if one.allows_shares and not (one.lacks_counters and not one.holders)
    }
    if text == "no GPU of the cluster is available in shares":
        return not memory
    if text == "no memory of any GPU is left":
        return not any(left for left, _ in memory.values())
    found = re.fullmatch(r"the GPU with most memory left has (?P<size>.+) \(on (?P<node>.+)\)", text)
    if found is not None:
        most = max((left for left, _ in memory.values()), default=0)
        return any(left == most and name == found["node"] for (name, _), (left, _) in memory.items()) and _is_size(
            found["size"], most
        )
    found = re.fullmatch(r"no GPU has (?P<wanted>.+) of memory, the largest has (?P<size>.+)", text)
    if found is not None:
        return _is_size(found["size"], max((total for _, total in memory.values()), default=0))
    if re.fullmatch(r"no node has room for .+, even with all of its GPUs free", text):
        return not any(map(_could_serve, view.values()))
    return bool(re.fullmatch(r"no GPU can be cut into what request .+ selects, but into .+", text))


def _is_size(text: str, amount_nano: int) -> bool:
    """Whether an amount of memory is written like this, rounded as one likes."""
    found = re.fullmatch(r"(?P<number>[\d.]+) (?P<unit>[KMGT]i?B|B)", text)
    if found is None:
        return False
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    amount = float(found["number"]) * units.get(found["unit"], 0)
    return abs(amount - amount_nano / 10**9) <= max(0.1 * units.get(found["unit"], 0), 1)
