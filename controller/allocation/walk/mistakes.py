"""What the authors of claims and classes most likely got wrong, found when a pod gets nothing."""

from __future__ import annotations

from collections.abc import Iterator

from dracaena import cel
from dracaena.api.reasons import ReadName
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.published_names import PublishedNames
from dracaena.controller.allocation.walk.answers import QuestionAnswers
from dracaena.controller.allocation.walk.pod_demand import Combination, PodDemand


def selector_failure(
    inventory: Inventory,
    demand: PodDemand,
    combination: Combination,
    answers: QuestionAnswers,
    selectors: CelSelectors,
    names: PublishedNames,
) -> Refused | None:
    """Say which selector has no answer for some device, None when all have one."""
    for kind in inventory.buckets:
        for failure in answers.of_kind(kind).failures:
            chosen = combination.scored[failure.request]
            name = chosen.demand.device_class.name
            subject = f"claim {combination.claims[chosen.key[0]].claim.key}, request {chosen.demand.name}"
            if failure.expression in chosen.demand.device_class.selectors:
                subject = f"DeviceClass {name}"
            text = f"{subject}: selector {failure.expression!r} has no answer for a device: {failure.reason}"
            unknown = names.unknown(inventory, tuple(_read_by(selectors, failure.expression)))
            return Refused(RefusalKind.SELECTOR, "; ".join((text, *unknown)), demand.concerns_us)
    return None


def unknown_names(
    inventory: Inventory, combination: Combination, selectors: CelSelectors, names: PublishedNames
) -> tuple[str, ...]:
    """Say which attributes and capacities the selectors, amounts and constraints of a combination read that no device
    of ours has. Cost: that of PublishedNames.unknown().
    """
    read: list[ReadName] = []
    for chosen in combination.requests:
        for expression in (*chosen.demand.device_class.selectors, *chosen.demand.request.selectors):
            read += _read_by(selectors, expression)
        read += map(ReadName.of_request, sorted(chosen.demand.request.capacity or ()))
    for index, claim in enumerate(combination.claims):
        for constraint in claim.spec.constraints:
            concerned = [one.demand.request for one in combination.of_claim(index)]
            if not any(request.derives(constraint.attribute) for request in concerned):
                read.append(ReadName.of_constraint(constraint.attribute))
    return names.unknown(inventory, tuple(read))


def _read_by(selectors: CelSelectors, expression: str) -> Iterator[ReadName]:
    footprint = selectors.footprint(expression)
    if isinstance(footprint, cel.Footprint):
        yield from ReadName.of_paths(footprint.paths)
