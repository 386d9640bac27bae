from __future__ import annotations

import pytest

from dracaena.api.links import MAX_NVLINKS
from dracaena.api.topology import TopologyError
from support.topologies import topology_from_matrix


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["X", "PIX"]], "row 0 has 2 cells, expected 1"),
        ([["X", "PIX"], ["PIX"]], "row 1 has 1 cells, expected 2"),
        ([["PIX", "PIX"], ["PIX", "X"]], "row 0 has 'PIX' on the diagonal, expected 'X'"),
        ([["X", "PIX"], ["PHB", "X"]], "GPU0 says PIX to GPU1, but GPU1 says PHB to GPU0"),
        ([["X", "FAR"], ["FAR", "X"]], "GPU0 to GPU1: 'FAR' is not a PCIe link level"),
        ([["X", "NV0"], ["NV0", "X"]], "has 0 NVLinks, expected 1 to 61"),
        ([["X", f"NV{MAX_NVLINKS + 1}"], [f"NV{MAX_NVLINKS + 1}", "X"]], "has 62 NVLinks"),
        ([["X", "X"], ["X", "X"]], "'X' is not a PCIe link level"),
    ],
)
def test_contradictory_matrix_is_refused_with_the_pair(rows: list[list[str]], message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        topology_from_matrix(rows)
    assert message in str(caught.value)
