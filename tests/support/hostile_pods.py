"""Pods whose claims cost as much as the API lets them: what a hostile tenant, or an unlucky one, may submit."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from support.allocation import DRIVER, claim, pod, request

Hostile = tuple[Pod, tuple[ResourceClaim, ...]]

MAX_SELECTOR = 10 * 1024
"""Characters of an expression that the API accepts."""

NUMBERS = f"[{','.join(map(str, range(30)))}]"


def cel(*expressions: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def loops(rng: random.Random) -> Hostile:
    """Selectors that loop and read what tells each GPU from all others, so that every device costs an evaluation."""
    number = rng.randrange(1_000_000)
    expression = (
        f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, a + b + c < {number} + 100))) && "
        f"device.attributes['{DRIVER}'].uuid == 'no GPU {number}'"
    )
    return made(request(selectors=cel(expression)))


def long_selectors(rng: random.Random) -> Hostile:
    """All the selectors that a request may have, all different and as long as they may be: they have to be compiled."""

    def expression() -> str:
        part = f" || device.attributes['{DRIVER}'].uuid == '{rng.randrange(10**12)}'"
        return ("false" + part * (MAX_SELECTOR // len(part)))[: MAX_SELECTOR - 20].rpartition(" ||")[0]

    return made(request(selectors=cel(*(expression() for _ in range(32)))))


def constraints(rng: random.Random) -> Hostile:
    """Requests whose devices must differ in what no node has enough values of."""
    requests = [request(f"r{index}", 1) for index in range(7)]
    names = [one["name"] for one in requests]
    constrained = [
        {"requests": names[: 2 + index % 5], "distinctAttribute": f"{DRIVER}/{name}"}
        for index, name in enumerate(("architecture", "productName", "brand", "type") * 2)
    ]
    constrained += [{"requests": names, "matchAttribute": f"{DRIVER}/uuid"} for _ in range(2)]
    return made(*rng.sample(requests, 7), constraints=constrained)


def alternatives(rng: random.Random) -> Hostile:
    """Thirty-two requests of eight alternatives each."""

    def alternative(index: int) -> dict[str, Any]:
        text = f"device.attributes['{DRIVER}'].uuid != '{rng.randrange(10**9)}'"
        return {"name": f"a{index}", "deviceClassName": DRIVER, "count": 1, "selectors": cel(text)}

    requests = [{"name": f"r{n}", "firstAvailable": [alternative(i) for i in range(8)]} for n in range(32)]
    return made(*requests)


def every_device(rng: random.Random) -> Hostile:
    """Mode All with a selector that has to be asked about each device of the cluster, and never fits."""
    text = f"device.attributes['{DRIVER}'].uuid.lowerAscii().contains('{rng.randrange(10**6)} is nowhere')"
    wanted = {"name": "all", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All", "selectors": cel(text)}}
    return made(wanted, request("one", 1, selectors=cel(text)))


def affinity(rng: random.Random) -> Hostile:
    """Thousands of terms of a node affinity, none of which holds."""
    terms = [
        {"matchExpressions": [{"key": f"k{rng.randrange(50)}", "operator": "In", "values": [str(rng.random())]}]}
        for _ in range(6_000)
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    tolerations = [{"key": f"t{index}", "operator": "Exists"} for index in range(1_000)]
    return made(request(), affinity={"nodeAffinity": required}, tolerations=tolerations)


def fat_claims(rng: random.Random) -> Hostile:
    """Many claims with all the opaque parameters that they may have."""
    parameters = {"kind": "Other", "x": [{}] * 3_000}
    other = {"opaque": {"driver": "other.example.com", "parameters": parameters}}
    return many_times(40, f"fat-{rng.randrange(10**9)}", made(request(count=8), configs=[other] * 32))


def many_claims(rng: random.Random) -> Hostile:
    """So many claims that to read them takes too long, small as each is: the API has no limit for their number."""
    return many_times(5_000, f"many-{rng.randrange(10**9)}", made(request(count=1)))


def many_times(count: int, name: str, one: Hostile) -> Hostile:
    """The pod with so many claims like its one."""
    first, (template,) = one
    claims = tuple(
        msgspec.structs.replace(
            template, metadata=msgspec.structs.replace(template.metadata, name=f"{name}-{n}", uid=f"uid-{name}-{n}")
        )
        for n in range(count)
    )
    entries = [{"name": f"c{n}", "resourceClaimName": one.metadata.name} for n, one in enumerate(claims)]
    spec = msgspec.convert({**msgspec.to_builtins(first.spec), "resourceClaims": entries}, type(first.spec))
    return msgspec.structs.replace(first, spec=spec), claims


KINDS: Mapping[str, Callable[[random.Random], Hostile]] = {
    "loops": loops,
    "long selectors": long_selectors,
    "constraints": constraints,
    "alternatives": alternatives,
    "every device": every_device,
    "affinity": affinity,
    "fat claims": fat_claims,
    "many claims": many_claims,
}


def made(
    *requests: dict[str, Any],
    constraints: list[dict[str, Any]] | None = None,
    configs: list[dict[str, Any]] | None = None,
    **spec: Any,
) -> Hostile:
    asked = claim("c", *requests, configs=configs or [])
    if constraints:
        asked.spec["devices"]["constraints"] = constraints
    return pod("p", "c", **spec), (asked,)


def named(hostile: Hostile, namespace: str, name: str, created: str) -> Hostile:
    """The pod under a name, with claims of its own."""
    one, claims = hostile
    replace = msgspec.structs.replace
    own = {
        old.metadata.name: replace(
            old,
            metadata=replace(
                old.metadata, name=f"{name}-{old.metadata.name}", namespace=namespace, uid=f"{name}-{old.metadata.uid}"
            ),
        )
        for old in claims
    }
    entries = [
        replace(entry, resource_claim_name=own[entry.resource_claim_name or ""].metadata.name)
        for entry in one.spec.resource_claims
    ]
    meta = replace(
        one.metadata, name=name, namespace=namespace, uid=f"uid-{namespace}-{name}", creation_timestamp=created
    )
    return replace(one, metadata=meta, spec=replace(one.spec, resource_claims=entries)), tuple(own.values())


def hostile_pod(kind: str, seed: int, *, namespace: str = "hostile", created: str = "2026-01-01T00:00:00Z") -> Hostile:
    """A pod of one kind with its claims; each seed has a shape of its own."""
    found = KINDS[kind](random.Random(f"{kind} {seed}"))
    return named(found, namespace, f"{kind.replace(' ', '-')}-{seed}", created)
