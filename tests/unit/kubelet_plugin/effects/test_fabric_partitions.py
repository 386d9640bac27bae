"""What claims activate of Fabric Manager's partitions, and what readings say of those, on a whole node."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.adapters.programs.fabric_manager import CHANGE_S, TALK_S
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from dracaena.kubelet_plugin.effects.fabric_partitions import ACTIVATED
from dracaena.kubelet_plugin.prepare.effects import Effect
from support.fabric_node import FabricNode, fabric_node
from support.fake_fabric_manager import (
    DOWN,
    GENERIC_ERROR,
    NOT_SUPPORTED,
    NVLINK_ERROR,
    RUNNING,
    STARTING,
    UNINITIALIZED,
    FakeFabricManager,
)
from support.full_disk import FullDisk
from support.plugin import reference_to


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FabricNode]:
    with fabric_node(tmp_path) as made:
        yield made


def prepare(node: FabricNode, *claims: ResourceClaim) -> None:
    for claim in claims:
        node.node.state.prepare(reference_to(claim))


def unprepare(node: FabricNode, *claims: ResourceClaim) -> None:
    for claim in claims:
        node.node.state.unprepare(reference_to(claim))


def active(node: FabricNode) -> list[int]:
    return sorted(node.manager.active)


def break_checkpoint(node: FabricNode, claim: ResourceClaim) -> None:
    (node.folder / "claims" / f"{claim.metadata.uid}.json").write_bytes(b"torn")
    node.restart()


def problem(node: FabricNode) -> str:
    fabric = node.node.pool.fabric
    assert fabric is not None
    return fabric.problem


def told(node: FabricNode) -> list[tuple[str, str]]:
    return [(trouble.reason, trouble.subject) for trouble in node.fabric_troubles]


SETS = [((5,), [11]), ((1, 3), [3]), ((5, 6, 7, 8), [2]), (range(1, 9), [0]), ((1, 2), [7, 8]), ((1, 3, 5), [7, 9, 11])]


@pytest.mark.parametrize("kind", ["whole", "vfio"])
def test_a_set_that_is_a_partition_is_activated_as_one_and_others_each_alone(node: FabricNode, kind: str) -> None:
    for modules, expected in SETS if kind == "whole" else SETS[1:6:3]:
        claim = node.whole_of("claim", *modules) if kind == "whole" else node.vfio_of("claim", *modules)
        prepare(node, claim)
        assert active(node) == expected
        node.restart()
        prepare(node, claim)  # answered as it is
        assert active(node) == expected
        unprepare(node, claim)
        unprepare(node, claim)
        assert active(node) == []
        node.look()  # the NVIDIA driver has them again


@pytest.mark.parametrize("kind", ["whole", "vfio"])
def test_a_claim_whose_checkpoint_is_gone_keeps_its_partition_while_its_spec_is_there(
    node: FabricNode, kind: str
) -> None:
    claim = node.whole_of("claim", 1, 3) if kind == "whole" else node.vfio_of("claim", 1, 3)
    prepare(node, claim)
    (node.folder / "claims" / f"{claim.metadata.uid}.json").unlink()
    for _ in range(2):
        node.restart()
        node.look()
        assert active(node) == [3]
        assert told(node) == []
    unprepare(node, claim)
    node.look()
    assert active(node) == []


KUBELETS_DEADLINE_S = 45.0


def until_done(node: FabricNode, call: Callable[[FabricNode, ResourceClaim], None], claim: ResourceClaim) -> list[int]:
    """Call as kubelet does, until there is no error; return how many partitions were active after each call."""
    counts: list[int] = []
    for _ in range(10):
        began_s, answer = node.clock.monotonic(), "done"
        try:
            call(node, claim)
        except TemporaryError as error:
            answer = str(error)
        assert node.clock.monotonic() - began_s <= KUBELETS_DEADLINE_S
        counts.append(len(active(node)))
        if answer == "done":
            return counts
        assert re.search("Fabric Manager is slow: .* are left", answer)
    raise AssertionError(f"no call gets on: {counts}")


@pytest.mark.parametrize("kind", ["whole", "vfio"])
def test_a_fabric_manager_that_takes_all_its_time_never_holds_a_call_beyond_kubelets_deadline(
    node: FabricNode, kind: str
) -> None:
    claim = (node.whole_of if kind == "whole" else node.vfio_of)("claim", 1, 3, 5, 7, 2)
    node.port.talk_s, node.port.change_s = TALK_S, CHANGE_S
    assert until_done(node, prepare, claim) == [1, 2, 3, 4, 5]
    node.node.state.prepare(reference_to(claim))
    assert until_done(node, unprepare, claim) == [4, 3, 2, 1, 0]


def test_a_fabric_manager_of_usual_speed_activates_all_partitions_of_a_claim_in_one_call(node: FabricNode) -> None:
    node.port.talk_s, node.port.change_s = 0.1, 1.0
    prepare(node, node.whole_of("claim", 1, 3, 5, 7, 2))
    assert len(active(node)) == 5


def test_claims_have_partitions_side_by_side(node: FabricNode) -> None:
    claims = [node.whole_of("a", 1, 3), node.vfio_of("b", 2, 4), node.whole_of("c", 5), node.whole_of("d", 6)]
    prepare(node, *claims)
    assert active(node) == [3, 4, 11, 12]
    unprepare(node, claims[1], claims[3])
    assert active(node) == [3, 11]


def test_the_claims_that_share_a_gpu_share_its_partition(node: FabricNode) -> None:
    shares = [node.share("one"), node.share("other")]
    part = node.part("part", 1)
    prepare(node, *shares, part)
    assert active(node) == [7, 9]
    unprepare(node, shares[0])
    assert active(node) == [7, 9]
    unprepare(node, shares[1], part)
    assert active(node) == []


def test_whole_gpus_of_a_shared_node_are_one_partition(node: FabricNode) -> None:
    memory = str(node.machine.gpus[0].memory_bytes)
    names = [gpu_device_name(node.machine.gpus[ordinal].uuid) for ordinal in (0, 1)]
    claim = node.claim("all", *names, shareID="s1", consumedCapacity={"memory": memory, "cores": "0"})
    prepare(node, claim)
    assert active(node) == [3]
    unprepare(node, claim)


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


def test_a_partition_with_a_gpu_that_somebody_else_linked_is_refused(node: FabricNode) -> None:
    node.manager.active = [1]
    with pytest.raises(TemporaryError, match=r"partition 3 \(modules 1 3\) cannot be activated while its GPUs are in "):
        prepare(node, node.whole_of("a", 1, 3))
    node.look()
    assert told(node) == [("FabricPartitionUnclear", "partition 1")]
    fabric = node.node.pool.fabric
    assert fabric is not None
    assert fabric.foreign == {1, 2, 3, 4}
    assert active(node) == [1]  # it is not ours
    prepare(node, node.whole_of("b", 5, 7))
    node.manager.active.remove(1)
    prepare(node, node.whole_of("c", 1, 3))
    node.look()
    assert told(node) == []


@pytest.mark.parametrize("code", [-7, -12, -17, -23, -24])
def test_who_is_quicker_by_a_moment_keeps_the_partition(node: FabricNode, code: int) -> None:
    def of_somebody_else(partition: int) -> int:
        node.manager.active.append(partition)
        return code

    node.manager.activate = of_somebody_else  # type: ignore[method-assign]
    claim = node.whole_of("a", 1, 3)
    with pytest.raises(TemporaryError, match=f"fmActivateFabricPartition says {code}"):
        prepare(node, claim)
    unprepare(node, claim)
    assert active(node) == [3]
    assert partitions_kept(node) == []


CODES = [code for code in range(-29, 0) if code not in {NOT_SUPPORTED, UNINITIALIZED}]


@pytest.mark.parametrize("code", CODES)
def test_a_refused_deactivation_is_settled_by_what_is_active_whatever_its_code(node: FabricNode, code: int) -> None:
    gone, stays = node.whole_of("gone", 5), node.whole_of("stays", 1, 3)
    prepare(node, gone, stays)
    node.manager.active.remove(11)  # it was started anew, and a reading has not seen that yet
    node.manager.fails = {"fmDeactivateFabricPartition": code}
    unprepare(node, gone)
    with pytest.raises(TemporaryError, match=f"fmDeactivateFabricPartition says {code}"):
        unprepare(node, stays)
    assert active(node) == [3]
    node.manager.fails = {}
    unprepare(node, stays)
    assert active(node) == []
    assert node.node.node_claims.by_boot() == ((), (), ())
    assert partitions_kept(node) == []


@pytest.mark.parametrize("code", [GENERIC_ERROR, NVLINK_ERROR, -18, -22])
def test_a_change_that_is_made_and_then_refused_leaves_no_partition_behind(node: FabricNode, code: int) -> None:
    claim = node.whole_of("a", 1, 3)
    node.manager.fails_after = {"fmActivateFabricPartition": code, "fmDeactivateFabricPartition": code}
    with pytest.raises(TemporaryError, match=f"fmActivateFabricPartition says {code}"):
        prepare(node, claim)
    assert active(node) == []
    assert node.node.node_claims.by_boot() == ((), (), ())
    node.manager.fails_after = {"fmDeactivateFabricPartition": code}
    prepare(node, claim)
    unprepare(node, claim)
    assert active(node) == []
    assert partitions_kept(node) == []


def test_a_refused_deactivation_holds_the_gpus_while_partitions_cannot_be_read(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim)
    asked: list[object] = []

    def answer() -> tuple[int, list[int]]:
        asked.append(())
        return (GENERIC_ERROR, []) if len(asked) == 2 else FakeFabricManager.supported(node.manager)

    node.manager.supported = answer  # type: ignore[method-assign]
    node.manager.fails_after = {"fmDeactivateFabricPartition": NVLINK_ERROR}
    with pytest.raises(TemporaryError, match="fmDeactivateFabricPartition says -10"):
        unprepare(node, claim)
    unprepare(node, claim)
    assert active(node) == []


def test_no_partition_is_activated_where_that_cannot_be_recorded(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    files = node.partitions._files
    node.partitions._files = DocumentFolder(node.folder / "fabric", steps=FullDisk(0), synced=False)
    with pytest.raises(DracaenaError, match="No space left"):
        prepare(node, claim)
    assert active(node) == []
    node.partitions._files = files
    prepare(node, claim)
    node.partitions._files = DocumentFolder(node.folder / "fabric", steps=FullDisk(0), synced=False)
    unprepare(node, claim)  # a full disk keeps nobody from ending a partition
    assert active(node) == []


def partitions_kept(node: FabricNode) -> list[int]:
    """What the file says may be active."""
    file = node.folder / "fabric" / ACTIVATED
    return list(json.loads(file.read_bytes())["partitions"]) if file.exists() else []


@pytest.mark.parametrize("code", [GENERIC_ERROR, NVLINK_ERROR, -5, -6, -9])
def test_a_refusal_of_any_kind_leaves_nothing_behind(node: FabricNode, code: int) -> None:
    node.manager.fails = {"fmActivateFabricPartition": code}
    claim = node.vfio_of("a", 1, 3)
    with pytest.raises(TemporaryError, match=f"says {code}"):
        prepare(node, claim)
    assert node.node.node_claims.of(reference_to(claim).uid) is None
    assert node.drivers_of(0)[0] == "nvidia"
    node.manager.fails = {}
    prepare(node, claim)
    assert active(node) == [3]


def test_an_activation_that_comes_late_is_ended_all_the_same(node: FabricNode) -> None:
    node.manager.late = ["fmActivateFabricPartition"]
    claim = node.whole_of("a", 1, 3)
    with pytest.raises(TemporaryError, match="not answered"):
        prepare(node, claim)
    node.port.read()  # what is pending comes now, if it still may
    assert active(node) == []
    assert node.node.node_claims.of(reference_to(claim).uid) is None


def test_a_deactivation_without_an_answer_holds_the_gpus(node: FabricNode) -> None:
    claim, other = node.whole_of("a", 1, 3), node.whole_of("b", 3)
    prepare(node, claim)
    node.manager.silent = ["fmDeactivateFabricPartition"]
    with pytest.raises(TemporaryError, match="not answered"):
        unprepare(node, claim)
    with pytest.raises(DracaenaError, match="still held"):
        prepare(node, other)
    node.manager.silent = []
    node.restart()
    unprepare(node, claim)
    prepare(node, other)
    assert active(node) == [9]


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


def test_in_another_mode_claims_need_no_partition(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim)
    node.manager.shared = False
    node.manager.active = []
    node.look()
    assert told(node) == [("FabricManagerNotReady", "")]
    assert node.node.pool.fabric is None
    unprepare(node, claim)
    prepare(node, node.whole_of("b", 1, 2))
    assert node.manager.active == []


def test_in_its_mode_for_vgpus_it_refuses_and_nothing_stays(node: FabricNode) -> None:
    node.manager.fails = {"fmActivateFabricPartition": NOT_SUPPORTED, "fmDeactivateFabricPartition": NOT_SUPPORTED}
    claim = node.whole_of("a", 1, 3)
    with pytest.raises(TemporaryError, match="fmActivateFabricPartition says -3"):
        prepare(node, claim)
    assert node.node.node_claims.of(reference_to(claim).uid) is None


def test_partitions_that_cannot_be_activated_are_not_offered(node: FabricNode) -> None:
    node.manager.unsupported = [0, 3, 7]
    with pytest.raises(TemporaryError, match="partition 3 is not that of modules 1 3 any more"):
        prepare(node, node.whole_of("a", 1, 3))
    node.look()
    with pytest.raises(PrepareError, match=r"no partition of module 1 alone, and none of exactly .*modules 1 3"):
        prepare(node, node.whole_of("a", 1, 3))
    prepare(node, node.whole_of("b", 2, 4))
    assert active(node) == [4]


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


def test_a_reading_between_the_end_of_a_partition_and_that_of_its_journal_does_not_activate_it_again(
    node: FabricNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim)
    deactivate = node.port.deactivate
    seen: list[list[int]] = []

    def deactivated(partition: int) -> None:
        deactivate(partition)
        seen.append(active(node))

    monkeypatch.setattr(node.port, "deactivate", deactivated)
    undo = node.partitions.undo

    def undone(effect: Effect, others: Sequence[Effect]) -> None:
        undo(effect, others)
        node.look()  # the checkpoint still says that it is active
        seen.append(active(node))

    monkeypatch.setattr(node.partitions, "undo", undone)
    unprepare(node, claim)
    assert seen == [[], []]
    assert told(node) == []


def test_a_claim_whose_checkpoint_broke_is_given_its_partition_again(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim)
    break_checkpoint(node, claim)
    assert (active(node), told(node)) == ([3], [])  # it is not taken for somebody else's
    prepare(node, claim)
    node.look()
    assert (active(node), told(node)) == ([3], [])
    unprepare(node, claim)
    assert active(node) == []


def test_what_a_claim_left_whose_checkpoint_broke_is_deactivated_once_it_ended(node: FabricNode) -> None:
    claim, other = node.whole_of("a", 1, 3), node.whole_of("b", 5, 7)
    prepare(node, claim, other)
    break_checkpoint(node, claim)
    node.look()
    assert active(node) == [3, 5]
    unprepare(node, claim)
    node.look()
    assert (active(node), told(node)) == ([5], [])
    node.manager.active.append(3)  # from now on it is whoever's who activates it
    node.look()
    assert (active(node), told(node)) == ([3, 5], [("FabricPartitionUnclear", "partition 3")])


def test_what_is_kept_of_partitions_cannot_be_read_and_somebody_elses_stay(node: FabricNode) -> None:
    node.manager.active = [1]
    (node.folder / "fabric" / "activated.json").write_bytes(b'{"boot": "boot-1", "partitions": [[')
    node.look()
    assert (active(node), told(node)) == ([1], [("FabricPartitionUnclear", "partition 1")])


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
    assert "cannot be activated: it is not that of modules 1 3 any more (claims with UID a-uid)" in (
        node.fabric_troubles[0].text
    )


def test_an_activation_of_ours_that_comes_late_is_not_taken_for_somebody_elses(
    node: FabricNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = node.whole_of("a", 1, 3)
    node.manager.late = ["fmActivateFabricPartition"]
    node.manager.silent = ["fmDeactivateFabricPartition"]
    with pytest.raises(TemporaryError, match="not answered"):
        prepare(node, claim)  # it may be active, and cannot be ended yet
    node.manager.late, node.manager.active = [], []
    activate = node.port.activate

    def comes_first(partition: int) -> None:
        node.manager.active = [partition]
        activate(partition)

    monkeypatch.setattr(node.port, "activate", comes_first)
    with pytest.raises(TemporaryError, match="says -7"):
        prepare(node, claim)
    node.manager.silent = []
    unprepare(node, claim)
    assert active(node) == []


def test_a_reboot_ends_all_partitions(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim)
    node.reboot()
    assert active(node) == []
    unprepare(node, claim)
    prepare(node, claim)
    assert active(node) == [3]
