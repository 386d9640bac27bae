from __future__ import annotations

from pathlib import Path

from dracaena.exporter.adapters.process_cgroups import ProcessCgroups


def test_a_process_that_has_ended_has_no_place(tmp_path: Path) -> None:
    assert ProcessCgroups(str(tmp_path)).place_of(7) is None


def test_a_process_of_this_machine_is_read() -> None:
    assert ProcessCgroups().place_of(1) is not None
