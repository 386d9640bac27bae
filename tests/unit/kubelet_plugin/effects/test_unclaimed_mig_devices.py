"""MIG devices whose claim ended with a broken checkpoint: destroyed where that is proved, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dracaena.api.errors import DracaenaError
from dracaena.api.names import PoolName
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.effects.mig_device_records import MigDeviceRecords
from dracaena.kubelet_plugin.node.pool import node_pool
from support.mig_claims import Claims
from support.mig_node import mig_node
from support.plugin import (
    DRIVER,
    NODE,
    ThreadLock,
    reference_to,
)


class LateLock(ThreadLock):
    """Whoever waits for it gets it after somebody else has done something."""

    def __init__(self, others: Callable[[], object]) -> None:
        super().__init__()
        self._others = others

    @contextmanager
    def hold(self, within_s: float | None = None) -> Iterator[None]:
        self._others()
        with super().hold(within_s):
            yield


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Claims]:
    with mig_node() as mig:
        yield Claims(tmp_path, mig)


def test_a_mig_device_whose_claim_ended_with_a_broken_checkpoint_is_destroyed_and_no_other(claims: Claims) -> None:
    lost, kept = claims.claim("lost", claims.place("3g.40gb", 4)), claims.claim("kept", claims.place("1g.10gb", 0))
    for claim in (lost, kept):
        claims.node.state.prepare(reference_to(claim))
    before = claims.mig.hardware.layout(0)
    assert claims.sweep() == 0
    checkpoint = claims.folder / "claims" / f"{reference_to(lost).uid}.json"
    data = checkpoint.read_bytes()
    checkpoint.unlink()
    claims.node.node_claims.look_at_each()
    claims.node.node_claims.remove_spec(reference_to(lost).uid)
    assert (claims.sweep(), claims.mig.hardware.layout(0)) == (0, before), "it is lost, and its pod may run"
    checkpoint.write_bytes(data)
    claims.break_checkpoint(lost)
    assert (claims.sweep(), claims.mig.hardware.layout(0)) == (0, before), "it may have any device"
    claims.lose(lost)
    assert claims.mig.hardware.layout(0) == before
    claims.restart()
    assert (claims.sweep(), len(claims.mig.hardware.layout(0))) == (1, 1)
    assert claims.sweep() == 0
    claims.node.state.unprepare(reference_to(kept))
    assert claims.mig.hardware.layout(0) == []
    assert list(claims.folder.glob("made-*")) == []


def test_a_mig_device_that_lies_where_a_lost_one_lay_is_a_strangers(claims: Claims) -> None:
    claim = claims.claim("lost", claims.place("3g.40gb", 4))
    claims.node.state.prepare(reference_to(claim))
    claims.lose(claim)
    (record,) = claims.folder.glob("made-*")
    record.write_bytes(record.read_bytes().replace(b"MIG-0000", b"MIG-1111"))
    before = claims.mig.hardware.layout(0)
    assert (claims.sweep(), claims.mig.hardware.layout(0)) == (0, before)
    assert claims.mig.records.places() == ()


def test_a_record_that_replaces_one_of_an_earlier_boot_while_that_is_being_removed_stays(claims: Claims) -> None:
    """The first sweep of a boot comes together with the first claims."""
    claims.node.state.prepare(reference_to(claims.claim("one", claims.place("3g.40gb", 4))))
    (record,) = claims.folder.glob("made-*")
    made = record.read_bytes()
    record.write_bytes(made.replace(b"boot-1", b"boot-0"))
    lock = LateLock(lambda: record.write_bytes(made))
    claims.mig.records = MigDeviceRecords(DocumentFolder(claims.folder, synced=False), lock, "boot-1", claims.owner)
    assert claims.sweep() == 0
    assert record.read_bytes() == made
    record.write_bytes(made.replace(b"boot-1", b"boot-0"))
    claims.restart()
    assert claims.sweep() == 0
    assert not record.exists()


def test_a_record_that_replaces_another_while_the_gpu_is_waited_for_does_not_go_with_that(claims: Claims) -> None:
    """The other instance of the plugin has swept, and then a second claim of the place was lost."""
    lost = claims.claim("lost", claims.place("3g.40gb", 4))
    claims.node.state.prepare(reference_to(lost))
    claims.lose(lost)
    (record,) = claims.folder.glob("made-*")
    made = record.read_bytes()
    record.write_bytes(made.replace(b"MIG-0000", b"MIG-1111"))
    claims.node.gpu_locks[claims.gpus[0]] = LateLock(lambda: record.write_bytes(made))
    assert [claims.sweep(), claims.sweep()].count(1) == 1
    assert claims.mig.hardware.layout(0) == []


def test_a_lost_mig_device_stays_where_its_gpu_is_no_longer_divided_on_demand(claims: Claims) -> None:
    """It is published like the others of such a GPU, and claims get these without an effect: no lock keeps one from
    being prepared while the sweep destroys it.
    """
    lost = claims.claim("lost", claims.place("3g.40gb", 4))
    claims.node.state.prepare(reference_to(lost))
    claims.lose(lost)
    divided, before = claims.pool, claims.mig.hardware.layout(0)
    claims.read(node_pool(claims.mig.hardware.machine, DRIVER, PoolName(NODE)))
    assert (claims.sweep(), claims.mig.hardware.layout(0)) == (0, before)
    claims.read(divided)
    assert (claims.sweep(), claims.mig.hardware.layout(0)) == (1, [])


def test_a_lost_mig_device_is_left_while_a_claim_waits_for_its_place(claims: Claims) -> None:
    lost, later = (claims.claim(name, claims.place("3g.40gb", 4)) for name in ("lost", "later"))
    claims.node.state.prepare(reference_to(lost))
    claims.lose(lost)
    with pytest.raises(DracaenaError, match="taken by GPU instance"):
        claims.node.state.prepare(reference_to(later))
    assert claims.sweep() == 1
    claims.node.state.prepare(reference_to(later))
    claims.node.state.unprepare(reference_to(later))
    assert claims.mig.hardware.layout(0) == []
