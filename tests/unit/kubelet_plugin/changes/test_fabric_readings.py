"""What readings say of Fabric Manager's partitions, and what happens to them when it restarts, on a whole node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import chain, combinations, count, product
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.changes.change import Note
from dracaena.kubelet_plugin.changes.engine import SettledThings
from dracaena.kubelet_plugin.changes.fabric_readings import PLACES, FabricReadings, NotedPlaces
from dracaena.kubelet_plugin.changes.kinds.fabric_partition import FabricPartitions
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from dracaena.kubelet_plugin.discovery.build import Reading
from support.clock import FakeClock
from support.fabric_node import FabricNode, FabricPort, active, break_checkpoint, fabric_node, prepare, told, unprepare
from support.fake_fabric_manager import (
    DOWN,
    GENERIC_ERROR,
    NOT_SUPPORTED,
    NVLINK_ERROR,
    RUNNING,
    STARTING,
    FakeFabricManager,
)
from support.machines import plain_machine
from support.plugin import ThreadLock, node_claims


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FabricNode]:
    with fabric_node(tmp_path) as made:
        yield made


def problem(node: FabricNode) -> str:
    fabric = node.node.pool.fabric
    assert fabric is not None
    return fabric.problem


def test_a_gpu_that_left_the_nvidia_driver_keeps_its_place_until_the_node_is_booted(node: FabricNode) -> None:
    claim = node.vfio_of("machine", 1, 3)
    prepare(node, claim)
    for start in (node.look, node.restart):
        start()
        passthrough = {gpu.pci_bus_id: gpu.module_id for gpu in node.node.pool.passthrough.values()}
        assert passthrough[node.addresses[0]] == 3
        assert told(node) == []
    unprepare(node, claim)
    for address in node.addresses[:2]:  # an admin binds them, and the node comes up with that
        node.bus.write("bus/pci/drivers/nvidia/unbind", address)
        (node.bus.device(address) / "driver_override").write_text("vfio-pci\n")
        node.bus.write("bus/pci/drivers/vfio-pci/bind", address)
    node.look()
    assert told(node) == []
    node.boot += 1
    node.restart()
    assert told(node) == [("FabricPartitionUnclear", address) for address in node.addresses[:2]]
    with pytest.raises(PrepareError, match="it is not known which Fabric Manager partitions vfio-0000-18-00-0 is in"):
        prepare(node, node.vfio("later", 0))


class BusyLock:
    """Another call has it for as long as anybody waits."""

    def hold(self, _within_s: float | None = None) -> AbstractContextManager[None]:
        raise TemporaryError("another call of this plugin is busy for more than 20 s")


def test_it_keeps_its_place_also_while_another_call_is_busy(node: FabricNode, tmp_path: Path) -> None:
    prepare(node, node.vfio_of("machine", 1, 3))
    claims = node_claims(tmp_path, f"boot-{node.boot}", lock=BusyLock())
    ledger = Ledger(in_ledger(tmp_path), claims, claims.boot_id)
    node.readings = FabricReadings(node.port, node.readings.partitions, ledger, claims)
    node.look()
    passthrough = {gpu.pci_bus_id: gpu.module_id for gpu in node.node.pool.passthrough.values()}
    assert passthrough[node.addresses[0]] == 3
    assert told(node) == []


def test_without_an_answer_claims_are_refused_and_nothing_is_linked(node: FabricNode) -> None:
    node.manager.life = DOWN
    with pytest.raises(TemporaryError, match="fmConnect says -9"):
        prepare(node, node.whole_of("a", 1, 3))  # by the last reading it was there
    node.look()
    assert told(node) == [("FabricManagerNotReady", "")]
    assert "fmConnect says -9" in problem(node)
    with pytest.raises(PrepareError, match="no Fabric Manager partition can be activated: fmConnect says -9"):
        prepare(node, node.whole_of("b", 2))
    node.manager.life = STARTING
    node.look()
    assert "Fabric Manager is starting" in problem(node)


def test_after_a_restart_in_its_restart_mode_it_is_told_what_claims_have(node: FabricNode) -> None:
    claims = [node.whole_of("a", 1, 3), node.vfio_of("b", 5, 7)]
    prepare(node, *claims)
    node.manager.restart(resuming=True)
    node.look()
    assert (active(node), told(node)) == ([3, 5], [])
    node.manager.restart(resuming=True)
    node.restart()  # ours too
    assert active(node) == [3, 5]
    node.manager.restart(resuming=True)
    prepare(node, node.whole_of("c", 2))  # a claim comes before the reading
    assert active(node) == [3, 5, 8]
    node.manager.restart(resuming=True)
    unprepare(node, claims[0])
    assert active(node) == [5, 8]
    node.manager.fails = {"fmSetActivatedFabricPartitions": GENERIC_ERROR}
    node.manager.restart(resuming=True)
    with pytest.raises(TemporaryError, match="does not accept yet which partitions are active"):
        prepare(node, node.whole_of("d", 4))
    node.look()
    assert told(node) == [("FabricManagerNotReady", "")]


def test_after_a_restart_from_the_beginning_partitions_of_claims_are_activated_again(node: FabricNode) -> None:
    claims = [node.whole_of("a", 1, 3), node.vfio_of("b", 5, 7)]
    prepare(node, *claims)
    node.manager.restart(resuming=False)
    node.look()
    assert active(node) == [3, 5]
    assert told(node) == [("FabricPartitionUnclear", "partition 3"), ("FabricPartitionUnclear", "partition 5")]
    assert "Programs that use its NVLinks must be restarted (claims with UID a-uid)" in node.fabric_troubles[0].text
    node.look()
    assert told(node) == []
    node.manager.restart(resuming=False)
    node.manager.fails = {"fmActivateFabricPartition": NVLINK_ERROR}
    node.look()
    assert "cannot be activated: fmActivateFabricPartition says -10" in node.fabric_troubles[0].text
    unprepare(node, *claims)
    assert active(node) == []


def test_a_reading_between_the_end_of_a_partition_and_that_of_its_claim_does_not_activate_it_again(
    node: FabricNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim)
    settle = node.node.engine.settle
    seen: list[list[int]] = []

    def settled(*arguments: Any) -> SettledThings:
        found = settle(*arguments)
        monkeypatch.undo()
        seen.append(active(node))
        node.look()  # the checkpoint still says that the claim wants it
        seen.append(active(node))
        return found

    monkeypatch.setattr(node.node.engine, "settle", settled)
    unprepare(node, claim)
    assert seen == [[], []]
    assert told(node) == []


def test_a_fabric_manager_in_its_restart_mode_is_told_of_a_claim_whose_checkpoint_broke(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim, node.whole_of("b", 5, 7))
    node.manager.restart(resuming=True)
    break_checkpoint(node, claim)
    assert active(node) == [3, 5]


def test_that_fabric_manager_waits_for_nothing_is_not_taken_for_another_mode(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim)
    node.manager.life = STARTING
    node.manager.fails = {"fmSetActivatedFabricPartitions": NOT_SUPPORTED}
    node.look()
    assert "Fabric Manager is starting" in problem(node)
    with pytest.raises(TemporaryError, match="does not accept yet which partitions are active"):
        unprepare(node, claim)
    node.manager.life, node.manager.fails = RUNNING, {}
    unprepare(node, claim)
    assert active(node) == []


def test_a_partition_that_has_other_gpus_after_a_restart_is_not_activated_again(node: FabricNode) -> None:
    prepare(node, node.whole_of("a", 1, 3))
    node.manager.restart(resuming=False)
    node.manager.partitions[3] = (1, 2)
    node.look()
    assert active(node) == []
    assert "cannot be activated: Fabric Manager does not have, or does not support, partition 3 (modules 1 3)" in (
        node.fabric_troubles[0].text
    )


# Two instances, each with a reading of its own, of which one may be old: the driver hung


class TakenError(BaseException):
    """The other instance has the lock, and this one would wait for it."""


class SharedLock:
    """The lock of both instances, on one thread."""

    def __init__(self) -> None:
        self._is_taken = False

    @contextmanager
    def hold(self, _within_s: float | None = None) -> Iterator[None]:
        if self._is_taken:
            raise TakenError
        self._is_taken = True
        try:
            yield
        finally:
            self._is_taken = False


class NoLock:
    """A planted fault: nobody waits for anybody."""

    def hold(self, _within_s: float | None = None) -> AbstractContextManager[None]:
        return nullcontext()


class Interrupted(DocumentFolder):
    """The files of the instance that is interrupted: `step` is called before each access, and after it."""

    step: Callable[[], None] = staticmethod(lambda: None)

    def read(self, name: str) -> bytes | None:
        self.step()
        found = super().read(name)
        self.step()
        return found

    def write(self, name: str, data: bytes) -> None:
        self.step()
        super().write(name, data)
        self.step()


def instance(folder: Path, lock: SharedLock | NoLock, files: DocumentFolder) -> FabricReadings:
    claims = node_claims(folder, lock=lock)
    ledger, clock = Ledger(files, claims, claims.boot_id), FakeClock()
    port = FabricPort(FakeFabricManager(life=DOWN), clock)
    return FabricReadings(port, FabricPartitions(port, ThreadLock(), ledger, clock), ledger, claims)


def reading_of(modules: Collection[int]) -> Reading:
    """A reading of the GPUs that have these modules; VFIO has the others by then."""
    plain = plain_machine(len(modules))
    gpus = [
        replace(gpu, module_id=module, pci_bus_id=f"0000:0{module}:00.0")
        for gpu, module in zip(plain.gpus, modules, strict=True)
    ]
    return Reading(replace(plain, gpus=tuple(gpus)))


def noted_in(folder: Path) -> tuple[int, ...]:
    """Return the modules that are noted."""
    note = Ledger(in_ledger(folder), node_claims(folder), "boot-1").read(PLACES, NotedPlaces)
    assert isinstance(note, Note)
    return tuple(sorted(note.noted.modules.values()))


def in_ledger(folder: Path) -> DocumentFolder:
    return DocumentFolder(folder / "ledger", synced=False)


def read_at(folder: Path, lock: SharedLock | NoLock, one: Reading, other: Reading, at: int) -> bool:
    """Have the other instance read at a step of the first one, or after it if it has to wait for the lock. Return
    whether there is such a step.
    """
    files = Interrupted(folder / "ledger", synced=False)
    first, second = instance(folder, lock, files), instance(folder, lock, in_ledger(folder))
    steps, waiting = count(), [other]

    def step() -> None:
        if next(steps) == at:
            with suppress(TakenError):
                second.read(other)
                waiting.clear()

    files.step = step
    first.read(one)
    for each in waiting:
        second.read(each)
    return next(steps) > at


def lost_places(folder: Path, lock: SharedLock | NoLock) -> list[str]:
    """Return each order of two readings after which a module that one of them had is not noted."""
    lost, number = [], count()
    some = list(chain.from_iterable(combinations((1, 2, 3), size) for size in (1, 2)))
    for one, other in product(some, some):
        for at in count():
            there = folder / str(next(number))
            if not read_at(there, lock, reading_of(one), reading_of(other), at):
                break
            if noted_in(there) != tuple(sorted({*one, *other})):
                lost.append(f"{one} and, at step {at}, {other}: {noted_in(there)}")
    return lost


def test_no_module_that_one_of_two_instances_has_read_is_forgotten(tmp_path: Path) -> None:
    assert lost_places(tmp_path, SharedLock()) == []


def test_without_their_lock_the_search_sees_modules_that_are_forgotten(tmp_path: Path) -> None:
    assert len(lost_places(tmp_path, NoLock())) > 20


def test_places_that_cannot_be_read_now_are_not_overwritten(tmp_path: Path) -> None:
    class Failing(DocumentFolder):
        def read(self, _name: str) -> bytes | None:
            raise TemporaryError("the disk does not answer")

    instance(tmp_path, SharedLock(), in_ledger(tmp_path)).read(reading_of((1, 2)))
    instance(tmp_path, SharedLock(), Failing(tmp_path / "ledger", synced=False)).read(reading_of((1,)))
    assert noted_in(tmp_path) == (1, 2)
