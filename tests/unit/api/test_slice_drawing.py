"""Memory slices of a GPU as a line of text."""

from __future__ import annotations

import pytest

from dracaena.api.slice_drawing import draw_slices


@pytest.mark.parametrize(
    ("slices", "parts", "foreign", "drawn"),
    [
        (8, [], [], "[·  ·  ·  ·  ·  ·  ·  ·]"),
        (8, [(0, 4, "4g.40gb"), (6, 1, "1g.10gb")], [], "[4g───────── ·  ·  1g ·]"),
        (8, [(0, 8, "7g.80gb")], [], f"[7g{'─' * 21}]"),
        (4, [(2, 2, "2g.12gb")], [0], "[x  ·  2g───]"),
        (4, [(0, 1, "1g.6gb+me"), (1, 1, "1g.6gb")], [], "[1g 1g ·  ·]"),
    ],
)
def test_each_part_is_a_bar_over_its_slices(
    slices: int, parts: list[tuple[int, int, str]], foreign: list[int], drawn: str
) -> None:
    assert draw_slices(slices, parts, foreign) == drawn
