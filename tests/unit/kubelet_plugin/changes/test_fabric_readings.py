"""What readings say of Fabric Manager's partitions, and what happens to them when it restarts, on a whole node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.changes.engine import SettledThings
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from support.fabric_node import FabricNode, active, break_checkpoint, fabric_node, prepare, told, unprepare
from support.fake_fabric_manager import (
    DOWN,
    GENERIC_ERROR,
    NOT_SUPPORTED,
    NVLINK_ERROR,
    RUNNING,
    STARTING,
)


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
