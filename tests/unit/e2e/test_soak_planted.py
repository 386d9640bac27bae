"""The faults that the soak has to find can still be planted: what each of them changes stands in the source once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.soak.planted import FAULTS, ROOT, PlantedFault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_can_be_planted(fault: PlantedFault, tmp_path: Path) -> None:
    path = tmp_path / fault.file
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / fault.file, path)
    fault.plant(tmp_path)
    assert path.read_text(encoding="utf-8") != (ROOT / fault.file).read_text(encoding="utf-8")
