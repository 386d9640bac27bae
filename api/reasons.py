"""Why something cannot be served, or is not taken into account: the words for it, here for Events and all commands.

Each says what was seen, and what to do about it if that is not plain. Whoever finds out is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

NEARNESS: Final = 0.8
"""How much of two names has to be alike, as difflib counts, for one to be taken for the other misspelt: two letters
that changed places in eight are, another word is not."""

MADE_BY_SOMEBODY: Final = "somebody has to make it"


def no_class(name: str, known: Iterable[str]) -> str:
    """Say that a DeviceClass is not there; `known` are those that are."""
    near = nearest(name, known)
    hint = "an admin has to make it" if near is None else f"did you mean {near}?"
    return f"DeviceClass {name} does not exist: {hint}"


def no_template(key: str) -> str:
    """Say that a ResourceClaimTemplate, by `namespace/name`, is not there."""
    return f"ResourceClaimTemplate {key} does not exist: {MADE_BY_SOMEBODY}"


def no_claim(key: str) -> str:
    """Say that a ResourceClaim that a pod names, by `namespace/name`, is not there."""
    return f"claim {key} does not exist: {MADE_BY_SOMEBODY}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most likely meant by one that is not known; None when none is near."""
    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=NEARNESS)), None)
