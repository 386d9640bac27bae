"""Memory slices of a GPU as a line of text."""

from __future__ import annotations

import pytest

from dracaena.api.devicepool import DecodedMig
from dracaena.api.names import DeviceName
from dracaena.api.slice_drawing import cut_gpus, draw_slices


@pytest.mark.parametrize(
    ("slices", "parts", "drawn"),
    [
        (8, [], "[·  ·  ·  ·  ·  ·  ·  ·]"),
        (8, [(0, 4, "4g.40gb"), (6, 1, "1g.10gb")], "[4g───────── ·  ·  1g ·]"),
        (8, [(0, 8, "7g.80gb")], f"[7g{'─' * 21}]"),
        (4, [(2, 2, "2g.12gb")], "[·  ·  2g───]"),
        (4, [(0, 1, "1g.6gb+me"), (1, 1, "1g.6gb")], "[1g 1g ·  ·]"),
    ],
)
def test_each_part_is_a_bar_over_its_slices(slices: int, parts: list[tuple[int, int, str]], drawn: str) -> None:
    assert draw_slices(slices, parts) == drawn


def place(gpu: str, profile: str, start: int, size: int) -> DecodedMig:
    return DecodedMig(DeviceName(f"{gpu}-{profile}-{start}"), "", f"GPU-{gpu}", profile, start=start, size=size)


def test_gpus_of_which_claims_have_parts_are_drawn_with_all_of_their_slices() -> None:
    existing = DecodedMig(DeviceName("existing"), "MIG-1", "GPU-c", "1g.5gb")
    every = [
        *(place("b", "1g.5gb", start, 1) for start in range(7)),
        *(place("a", "1g.5gb", start, 1) for start in range(7)),
        place("b", "7g.40gb", 0, 8),
        place("a", "3g.20gb", 0, 4),
        existing,
    ]
    taken = {"b-1g.5gb-6", "b-1g.5gb-2", "existing", "elsewhere"}
    (gpu,) = cut_gpus(every, taken)
    assert str(gpu) == "GPU-b  [·  ·  1g ·  ·  ·  1g ·]"
    assert [part.start for part in gpu.parts] == [2, 6]
    both = cut_gpus(every, taken | {"a-3g.20gb-0"})
    assert [str(one) for one in both] == [str(gpu), "GPU-a  [3g───────── ·  ·  ·]"], "as they are published"
    assert cut_gpus(every, ()) == ()
