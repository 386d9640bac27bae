"""Finds nodes, GPUs, pods, claims and namespaces by a part of their names, in turns like views.usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from dracaena.api import attributes as table
from dracaena.controller.views.names import Sight, shown_text
from dracaena.controller.views.snapshot import ClusterSnapshot
from dracaena.controller.views.teams import team_names
from dracaena.controller.views.usage import STEPS_A_TURN

MOST_HITS: Final = 12
"""Of one answer: what fits below the field."""

SHORTEST: Final = 2
"""Letters of a question."""

_UUID: Final = "gpu-"


def search_in_turns(
    snapshot: ClusterSnapshot, sight: Sight, text: str, about: dict[str, Any]
) -> Iterator[bytes | None]:
    """Yield None after each turn, and finally the JSON: `hits` and whether there are `more`. Teams come first, then
    pods, claims, nodes and GPUs; UUIDs are compared from their beginning."""
    wanted = text.strip().casefold()
    hits: list[dict[str, str]] = []
    for steps, hit in enumerate(_hits(snapshot, sight, wanted) if len(wanted) >= SHORTEST else (), start=1):
        if hit is not None and hit not in hits:
            hits.append(hit)
        if len(hits) > MOST_HITS:
            break
        if steps % STEPS_A_TURN == 0:
            yield None
    yield msgspec.json.encode({**about, "hits": hits[:MOST_HITS], "more": len(hits) > MOST_HITS})


def _hits(snapshot: ClusterSnapshot, sight: Sight, wanted: str) -> Iterator[dict[str, str] | None]:
    """Yield a hit, or None where something was looked at and is none."""
    for namespace in team_names(snapshot):
        found = wanted in namespace.casefold() and sight(namespace)
        yield _hit("team", namespace, f"team/{namespace}", "a namespace") if found else None
    for pod in snapshot.waiting or ():
        found = wanted in pod.name.casefold() and sight(pod.namespace)
        yield _hit("pod", pod.name, f"pod/{pod.namespace}/{pod.name}", f"waits, {pod.namespace}") if found else None
    for claim in snapshot.claims:
        yield None
        namespace = claim.metadata.namespace
        users = [user.name for user in claim.status.reserved_for if user.resource == "pods"]
        named = [name for name in users if wanted in name.casefold()]
        is_named = wanted in claim.metadata.name.casefold()
        if not (named or is_named) or not sight(namespace):
            continue
        for name in named:
            yield _hit("pod", name, f"pod/{namespace}/{name}", namespace)
        if is_named and users:
            yield _hit("claim", claim.metadata.name, f"pod/{namespace}/{users[0]}", f"{namespace}, of {users[0]}")
    for line in snapshot.lines:
        found = wanted in line.name.casefold()
        yield _hit("node", line.name, f"node/{line.name}", line.product) if found else None
    if wanted.startswith(_UUID):
        yield from _gpus(snapshot, wanted)


def _gpus(snapshot: ClusterSnapshot, wanted: str) -> Iterator[dict[str, str] | None]:
    for node, pages in sorted(snapshot.pages.items()):
        for page in pages:
            for device in page.spec.devices:
                uuid = device.attributes.get(table.UUID.name)
                text = None if uuid is None else uuid.string
                found = text is not None and text.casefold().startswith(wanted)
                yield _hit("GPU", text or "", f"node/{node}", f"of {node}") if found else None


def _hit(kind: str, name: str, place: str, note: str) -> dict[str, str]:
    return {"kind": kind, "name": shown_text(name), "open": place, "note": shown_text(note)}
