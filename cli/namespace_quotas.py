"""What namespaces may have of the GPUs and what they hold, for `dracaena status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dracaena.api.gpu_quota import amount_in_words, what_in_words
from dracaena.api.names import quota_annotation
from dracaena.api.objects import Namespace, Node
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.cli.columns import aligned
from dracaena.controller.simulation import make_inventory
from dracaena.controller.state.quotas import Quotas, QuotaState


def quota_states(
    driver: str,
    namespaces: Iterable[Namespace],
    nodes: Iterable[Node],
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
) -> tuple[QuotaState, ...]:
    """Return the namespaces with a quota, by name, counted as the controller does. Cost: O(nodes), none without one."""
    name = quota_annotation(driver)
    texts = {one.key: one.metadata.annotations[name] for one in namespaces if name in one.metadata.annotations}
    if not texts:
        return ()
    quotas = Quotas(make_inventory(driver, nodes=nodes, slices=slices, claims=claims))
    for namespace, text in texts.items():
        quotas.change(namespace, text)
    return quotas.states()


def quota_lines(states: Sequence[QuotaState]) -> Iterator[str]:
    """Yield a table with a line for each limit, and what cannot be read."""
    rows = [("NAMESPACE", "HOLDS", "MAY HAVE", "OF")]
    for state in states:
        for one, (limit, held) in state.limits.items():
            words = what_in_words(one).removeprefix("of ")
            rows.append((state.namespace, amount_in_words(one, held), amount_in_words(one, limit), words))
    if len(rows) > 1:
        yield from aligned(rows)
        yield ""
    for state in states:
        if state.problem:
            yield f"the quota of namespace {state.namespace} cannot be read: {state.problem}"
            yield ""


def quota_document(state: QuotaState) -> Mapping[str, Any]:
    """Return the JSON form; docs/explain.md promises it."""
    limits = [
        {"counted": one.key, "name": one.name, "limit": limit, "held": held}
        for one, (limit, held) in state.limits.items()
    ]
    return {"namespace": state.namespace, "limits": limits, "problem": state.problem}
