from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dracaena.api.mig_geometry import MigPlacement
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout
from dracaena.kubelet_plugin.prepare.journals.layouts import (
    MIG_JOURNAL,
    GpuRecord,
    LayoutJournal,
    MadeInstance,
)
from support.mig_geometries import H100_80GB


def at_random(rng: random.Random) -> LayoutJournal[GpuRecord]:
    def record() -> GpuRecord:
        layout = GpuLayout("all-1g", rng.random() < 0.5, {"1g.10gb": rng.randint(1, 7)})
        made = tuple(
            MadeInstance("1g.10gb", start, 1, rng.choice((None, start + 1)), rng.choice((None, f"MIG-{start}")))
            for start in range(rng.randint(0, 7))
        )
        return GpuRecord(rng.choice((None, layout)), made)

    journal = LayoutJournal("boot-1", GpuRecord())
    for number in range(rng.randint(0, 4)):
        journal = journal.having(f"GPU-{number}", record())
    return journal


def test_what_is_written_is_read_again() -> None:
    rng = random.Random(1)
    for _ in range(100):
        journal = at_random(rng)
        assert MIG_JOURNAL.decode(MIG_JOURNAL.encode(journal), "boot-1") == journal


def test_a_journal_of_another_boot_says_nothing() -> None:
    journal = LayoutJournal("boot-1", GpuRecord()).having("GPU-1", GpuRecord(made=(MadeInstance("1g.10gb", 0, 1, 1),)))
    assert MIG_JOURNAL.decode(MIG_JOURNAL.encode(journal), "boot-2") == LayoutJournal("boot-2", GpuRecord())


@pytest.mark.parametrize("data", [b"", b"[]", b'{"version": 2, "boot_id": "boot-1"}', b'{"version": 1}', b"[" * 9_999])
def test_what_is_no_journal_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        MIG_JOURNAL.decode(data, "boot-1")


def test_a_gpu_of_which_nothing_is_known_is_left_out() -> None:
    journal = LayoutJournal("boot-1", GpuRecord()).having("GPU-1", GpuRecord(made=(MadeInstance("1g.10gb", 0, 1),)))
    assert journal.having("GPU-1", GpuRecord()).gpus == {}
    assert journal.of("GPU-2") == GpuRecord()


def test_an_instance_is_known_by_its_place_its_profile_and_its_number_where_that_is_known() -> None:
    profile = H100_80GB[0]
    record = GpuRecord().making(profile, MigPlacement(3, 1))
    found = GpuInstance(5, "1g.10gb", MigPlacement(3, 1), has_compute=False)
    assert record.candidate(found) is not None
    record = record.identified(5)
    assert record.candidate(found) == MadeInstance("1g.10gb", 3, 1, 5)
    for other in (
        replace(found, number=6), replace(found, profile="1g.10gb+me"), replace(found, placement=MigPlacement(4, 1)),
    ):  # fmt: skip
        assert record.candidate(other) is None
    assert record.without(record.made[0]) == GpuRecord()
