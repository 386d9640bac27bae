"""Whose names a reader of the page may see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from dracaena.api.holders import Holder
from dracaena.api.node_status import DeviceStatus, PublishedNode

Sight = Callable[[str], bool]
"""Returns whether the pods and claims of a namespace may be named."""

MOST_LETTERS: Final = 1_000
"""Of a text from outside: an Event has as many."""


def shown_text(text: str) -> str:
    """Return a bounded text that stays on its line: control characters, and those that change the writing direction,
    are replaced. Markup is left alone: the caller must show it as text."""
    cut = text[:MOST_LETTERS]
    if cut.isprintable():
        return cut
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in cut)


def without_names(node: PublishedNode, sight: Sight) -> PublishedNode:
    """Return the same node without the names that may not be seen."""
    return replace(
        node,
        gpus={ordinal: _device(device, sight) for ordinal, device in node.gpus.items()},
        migs=tuple(_device(mig, sight) for mig in node.migs),
        vgpus=tuple(_device(vgpu, sight) for vgpu in node.vgpus),
        states=tuple(replace(gpu, holders=_holders(gpu.holders, sight)) for gpu in node.states),
    )


def _device(device: DeviceStatus, sight: Sight) -> DeviceStatus:
    return replace(device, holders=_holders(device.holders, sight))


def _holders(holders: Iterable[Holder], sight: Sight) -> tuple[Holder, ...]:
    return tuple(_holder(holder, sight) for holder in holders)


def _holder(holder: Holder, sight: Sight) -> Holder:
    if sight(holder.claim.partition("/")[0]):
        return holder
    return replace(holder, claim="", pods=(), hidden=True)
