"""What a pod asks of the nodes of one kind whose GPUs are cut on demand: which requests get parts, and of which places
(docs/design/mig.md)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from dracaena.api.partitions import PartitionedGpu
from dracaena.controller.allocation.legal.constraints import find_attribute, scalar
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.legal.selectors import Selectors
from dracaena.controller.allocation.nodes.matching import first_untolerated
from dracaena.controller.allocation.request import Question
from dracaena.controller.allocation.state.device_kind import groups
from dracaena.controller.allocation.state.node_state import NodeKind
from dracaena.controller.allocation.walk.fractions import FractionMasks, FractionQuestion, Option


@dataclass(frozen=True, slots=True)
class PartQuestion(FractionQuestion):
    """What a pod asks of the nodes of one kind."""

    apart: bool = False
    """Whether no two parts may be of the same GPU (distinctAttribute)."""
    is_exact: bool = False
    """Whether each request gets parts or whole GPUs here, and no constraint is left for the rules to judge."""
    has_either: bool = False
    """Whether a request that gets whole GPUs here may have parts too, so that only the rules know that nothing fits."""
    demands: tuple[tuple[int, ...], ...] = field(init=False)
    """The places in `fractions` of requests that may have the same parts whatever values they agree on: seven requests
    for one part each are one demand for seven, not 2^7 ways to serve some of them."""

    def __post_init__(self) -> None:
        alike: dict[tuple[FractionMasks, ...], list[int]] = {}
        for at in range(len(self.fractions)):
            alike.setdefault(tuple(option.fractions[at] for option in self.options), []).append(at)
        object.__setattr__(self, "demands", tuple(map(tuple, alike.values())))


def part_question(kind: NodeKind, question: Question, whole_masks: Sequence[int], selectors: Selectors) -> PartQuestion:
    """Return what a pod asks of the nodes of a kind. A request gets parts if places match it and no whole GPU does;
    one that means both is served with whole GPUs, and where these are short by the first parts that the rules allow.
    `whole_masks`: the whole GPUs that each request may have. Cost: O(requests × places), with selectors evaluated once
    for each.
    """
    if not kind.partitions.gpus:
        return PartQuestion(kind, (), (), ())
    masks = {
        place: tuple(_matching(one, question, place, selectors) for one in kind.partitions.gpus)
        for place, whole in enumerate(whole_masks)
        if not whole
    }
    parts = tuple(place for place, found in masks.items() if any(found))
    whole = tuple(place for place, mask in enumerate(whole_masks) if mask)
    options = [Option(tuple(whole_masks[place] for place in whole), tuple(masks[place] for place in parts))]
    apart, is_exact = False, len(parts) + len(whole) == len(whole_masks)
    for match in question.matches:
        concerned = set(match.requests)
        if match.distinct:
            is_apart = concerned <= set(parts) and _is_one_a_gpu(kind, match.attribute)
            apart, is_exact = apart or is_apart, is_exact and is_apart
        elif concerned <= set(parts):
            at = [parts.index(place) for place in match.requests]
            options = [cut for one in options for cut in _agreeing_parts(kind, one, at, match.attribute)]
        elif concerned <= set(whole):
            at = [whole.index(place) for place in match.requests]
            options = [cut for one in options for cut in _agreeing_gpus(kind, one, at, match.attribute)]
        else:
            is_exact = False
    either = bool(parts) and any(
        _matching(one, question, place, selectors) for place in whole for one in kind.partitions.gpus
    )
    return PartQuestion(kind, parts, whole, tuple(options), apart, is_exact and not kind.partitions.has_more, either)


def _matching(one: PartitionedGpu[PublishedDevice], question: Question, place: int, selectors: Selectors) -> int:
    """Return the places of a GPU that a request may have, by its selectors and taints."""
    eligibility = question.eligibility
    tolerations = eligibility.tolerations[place]
    if first_untolerated(eligibility.taints_of_all, tolerations) is not None:
        return 0
    expressions = eligibility.selectors[place] if eligibility.selectors else ()
    mask = 0
    for number, (device, taints) in enumerate(zip(one.devices, one.taints, strict=True)):
        if first_untolerated(taints, tolerations) is None and all(
            selectors.evaluate(expression, device) is True for expression in expressions
        ):
            mask |= 1 << number
    return mask


def _values(one: PartitionedGpu[PublishedDevice], attribute: str) -> Iterator[Hashable]:
    """Yield the value of each place; None if it has none."""
    for device in one.devices:
        found = find_attribute(device, attribute)
        yield None if found is None else scalar(found)


def _is_one_a_gpu(kind: NodeKind, attribute: str) -> bool:
    """Whether all places of a GPU have the same value of an attribute, and different GPUs different ones."""
    every = [set(_values(one, attribute)) for one in kind.partitions.gpus]
    return all(len(values) == 1 for values in every) and len(set().union(*every) - {None}) == len(every)


def _agreeing_parts(kind: NodeKind, option: Option, at: Sequence[int], attribute: str) -> Iterator[Option]:
    masks: dict[Hashable, list[int]] = {}
    for gpu, one in enumerate(kind.partitions.gpus):
        for number, value in enumerate(_values(one, attribute)):
            if value is not None:
                masks.setdefault(value, [0] * len(kind.partitions.gpus))[gpu] |= 1 << number
    for group in masks.values():
        cut = tuple(
            tuple(map(int.__and__, found, group)) if place in at else found
            for place, found in enumerate(option.fractions)
        )
        if all(any(found) for found in cut):
            yield Option(option.whole, cut)


def _agreeing_gpus(kind: NodeKind, option: Option, at: Sequence[int], attribute: str) -> Iterator[Option]:
    for group in groups(kind.devices, attribute):
        cut = tuple(mask & group if place in at else mask for place, mask in enumerate(option.whole))
        if all(cut):
            yield Option(cut, option.fractions)
