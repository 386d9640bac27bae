"""The size of the tmpfs of a GPU."""

from __future__ import annotations

import pytest

from dracaena.mps.planning.shm import MOST_FILES, shm_options

GIB = 1 << 30


@pytest.mark.parametrize(("gpus", "each"), [(1, 1024 * GIB), (8, 128 * GIB), (7, 157_073_088_512)])
def test_all_of_a_node_together_hold_half_of_its_memory_at_most(gpus: int, each: int) -> None:
    assert shm_options(2048 * GIB, gpus, "") == f"size={each},nr_inodes={MOST_FILES},mode=1777"
    assert gpus * each <= 1024 * GIB
    assert each % 4096 == 0


def test_the_label_is_one_of_all_files() -> None:
    assert shm_options(GIB, 1, "u:r:t:s0").endswith(',mode=1777,context="u:r:t:s0"')
