"""Claims that the API server does not let us write, and when to try again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dracaena.controller.lifecycle.pod_record import Growth

INVALID: Final = Growth(first_s=30.0, longest_s=3600.0)
"""A write that failed validation: only a change of the claim helps, which ends the wait, or a newer API server."""

FORBIDDEN: Final = Growth(first_s=1.0, longest_s=300.0)
"""A write that a policy, a webhook or our own rights forbid: an admin may change that, and nothing shows it to us."""


@dataclass(frozen=True, slots=True)
class WriteRefusal:
    """A claim that cannot be written as it is. The refusal is about the claim, so no pod that names it tries before
    `again_s`, a reading of our monotonic clock."""

    why: str
    tries: int
    again_s: float


def refuse(before: WriteRefusal | None, why: str, now_s: float, growth: Growth) -> WriteRefusal:
    """Return the refusal after one more write was refused."""
    tries = 1 if before is None else before.tries + 1
    return WriteRefusal(why, tries, now_s + min(growth.first_s * 2.0 ** min(tries - 1, 20), growth.longest_s))
