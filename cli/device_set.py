"""`dracaena topology show --devices`: a set of GPUs marked in the tree, what it is worth, and what would be chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from dracaena.api.errors import BadInputError

if TYPE_CHECKING:
    from dracaena.api.machine import Machine
    from dracaena.controller.allocation.score.order import Score

MARK: Final = "chosen"


def read_devices(text: str, machine: Machine, option: str) -> tuple[int, ...]:
    """Return the ordinals, ascending, of GPUs named by their numbers in the tree, UUIDs or device names.

    Names are separated by commas. Raises BadInputError for one that the machine does not have, and for one named twice.
    """
    from dracaena.api.names import gpu_device_name

    known: dict[str, int] = {}
    for number, gpu in enumerate(machine.gpus):
        for name in (str(gpu.index), f"GPU{gpu.index}", gpu.uuid, gpu_device_name(gpu.uuid)):
            known[name.lower()] = number
    found: list[int] = []
    for name in text.split(","):
        ordinal = known.get(name.strip().lower())
        if ordinal is None:
            numbers = ", ".join(str(gpu.index) for gpu in machine.gpus)
            raise BadInputError(f"{option}: {name.strip()!r} is not a GPU of {machine.name}, expected {numbers}")
        if ordinal in found:
            raise BadInputError(f"{option}: {name.strip()!r} is named twice")
        found.append(ordinal)
    return tuple(sorted(found))


def describe_set(machine: Machine, ordinals: Sequence[int]) -> Iterator[str]:
    """Yield the score of a set with all GPUs free, part by part, next to that of the set that would be chosen."""
    from dracaena.api.decision import part_in_words, value_in_words
    from dracaena.cli.columns import aligned
    from dracaena.controller.allocation.result import links_in_words
    from dracaena.controller.allocation.score.box import mask_of, ordinals_of
    from dracaena.controller.allocation.score.choices import Demand, Engine
    from dracaena.controller.allocation.score.nominal_rates import make_box

    box = make_box(machine.topology, dict(enumerate(machine.gpus)), machine.partitions())
    engine, free, mask = Engine(), mask_of(range(len(machine.gpus))), mask_of(ordinals)
    score = engine.score(box, free, mask)
    best = engine.best_two(box, free, (Demand(len(ordinals)),)).best
    assert best is not None, "with all GPUs free and no policy there is a choice"
    rows = [("", _gpus(machine, ordinals), f"best {len(ordinals)}: {_gpus(machine, ordinals_of(best.mask))}")]
    rows.append(("links", links_in_words(box, mask), links_in_words(box, best.mask)))
    for (name, mine), (_, theirs) in zip(score.parts(), best.score.parts(), strict=True):
        if mine or theirs or not name.endswith("_level"):  # level 0 in both: the pairs are joined by NVLinks
            rows.append((part_in_words(name), value_in_words(name, mine), value_in_words(name, theirs)))
    yield from aligned(rows)
    yield _verdict(score, best.score)


def _gpus(machine: Machine, ordinals: Sequence[int]) -> str:
    return "GPU" + ",".join(str(machine.gpus[ordinal].index) for ordinal in ordinals)


def _verdict(score: Score, best: Score) -> str:
    from dracaena.api.decision import part_in_words

    part = score.first_difference(best, on_one_node=True)
    if part is None:
        return "No other set of this size is better."
    return f"Worse than the best set in: {part_in_words(part)}."
