"""What claims activate of Fabric Manager's partitions, and what readings say of those, on a whole node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.adapters.programs.fabric_manager import CHANGE_S, TALK_S
from dracaena.kubelet_plugin.changes.change import SWEEP, Act, Thing
from dracaena.kubelet_plugin.changes.kinds.fabric_partition import Change
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from dracaena.kubelet_plugin.prepare.effects import FABRIC_PARTITION
from support.fabric_node import FabricNode, active, break_checkpoint, fabric_node, prepare, told, unprepare
from support.fake_fabric_manager import (
    GENERIC_ERROR,
    NOT_SUPPORTED,
    NVLINK_ERROR,
    UNINITIALIZED,
    FakeFabricManager,
)
from support.full_disk import FullDisk
from support.plugin import reference_to


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FabricNode]:
    with fabric_node(tmp_path) as made:
        yield made


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
        assert (sweep(node), active(node)) == (0, [3])
        assert told(node) == []
    unprepare(node, claim)
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
        assert re.search("no time is left for fabric-partition of .*Fabric Manager is slow", answer)
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


def test_a_call_without_time_does_not_blame_a_fabric_manager_that_was_not_asked(node: FabricNode) -> None:
    act = Act(Thing(FABRIC_PARTITION, "3-of-1-3"), Change.ACTIVATE, (), lambda _noted: None)
    (end,) = node.readings.partitions.do([act], lambda: 0.0)
    assert str(end.problem) == (
        "no time is left for fabric-partition of 3-of-1-3 in this call: the next one goes on with it"
    )


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
    assert node.noted_partitions() == []


@pytest.mark.parametrize("code", [-7, -12, -17, -23, -24])
def test_a_refusal_as_in_use_without_another_active_partition_names_persistence_too(
    node: FabricNode, code: int
) -> None:
    """It is not known whether Fabric Manager answers so for a GPU that persistence mode keeps initialised."""
    node.manager.fails = {"fmActivateFabricPartition": code}
    claim = node.whole_of("a", 1, 3)
    both = rf"says {code}: either somebody has just activated .*`fmpm -l`.*, or persistence mode keeps .*`nvidia-smi -i"
    with pytest.raises(TemporaryError, match=both):
        prepare(node, claim)
    assert (active(node), node.noted_partitions()) == ([], [])
    node.look()
    assert told(node) == []  # nobody else has it
    node.manager.fails = {}
    prepare(node, claim)
    assert active(node) == [3]


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
    assert node.noted_partitions() == []


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
    assert node.noted_partitions() == []


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


def test_no_partition_is_activated_where_that_cannot_be_noted(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    files = node.node.ledger._files
    full = DocumentFolder(node.folder / "ledger", steps=FullDisk(0), synced=False, in_place_if_full=True)
    node.node.ledger._files = full
    with pytest.raises(DracaenaError, match="No space left"):
        prepare(node, claim)
    assert active(node) == []
    node.node.ledger._files = files
    prepare(node, claim)
    node.node.ledger._files = full
    unprepare(node, claim)  # a full disk keeps nobody from ending a partition
    assert (active(node), node.noted_partitions()) == ([], [])


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
    with pytest.raises(
        TemporaryError, match=r"does not have, or does not support, partition 3 \(modules 1 3\) any more"
    ):
        prepare(node, node.whole_of("a", 1, 3))
    node.look()
    with pytest.raises(PrepareError, match=r"no partition of module 1 alone, and none of exactly .*modules 1 3"):
        prepare(node, node.whole_of("a", 1, 3))
    prepare(node, node.whole_of("b", 2, 4))
    assert active(node) == [4]


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


def test_the_end_of_a_claim_whose_checkpoint_broke_deactivates_its_partition(node: FabricNode) -> None:
    claim, other = node.whole_of("a", 1, 3), node.whole_of("b", 5, 7)
    prepare(node, claim, other)
    break_checkpoint(node, claim)
    assert active(node) == [3, 5]
    unprepare(node, claim)
    assert (active(node), node.noted_partitions()) == ([5], [5])
    node.manager.active.append(3)  # from now on it is whoever's who activates it
    node.look()
    assert (active(node), told(node)) == ([3, 5], [("FabricPartitionUnclear", "partition 3")])


def test_a_sweep_deactivates_what_no_claim_has(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim)
    (node.folder / "claims" / f"{claim.metadata.uid}.json").unlink()
    assert (sweep(node), active(node)) == (0, [3])  # its containers may run: its spec is there
    for spec in (node.folder / "cdi").iterdir():
        spec.unlink()
    node.manager.silent = ["fmDeactivateFabricPartition"]
    assert (sweep(node), active(node)) == (0, [3])
    assert [(each.reason, each.subject) for each in node.node.troubles] == [
        ("FabricPartitionUnclear", "partition 3-of-1-3")
    ]
    node.manager.silent = []
    assert (sweep(node), active(node), node.node.troubles) == (1, [], [])


def test_a_note_that_cannot_be_read_keeps_its_partition_until_a_claim_wants_it(node: FabricNode) -> None:
    node.manager.active = [1]
    claim = node.whole_of("a", 5, 7)
    prepare(node, claim)
    (note,) = (node.folder / "ledger").glob("fabric-partition.*")
    note.write_bytes(b'{"checksum": "", "note": [[')
    node.restart()
    assert (active(node), told(node)) == ([1, 5], [("FabricPartitionUnclear", "partition 1")])
    for path in (*(node.folder / "claims").glob("*.json"), *(node.folder / "cdi").glob("*.json")):
        path.unlink()  # the claim, which would prove that it is ours, is lost too
    node.restart()
    assert (sweep(node), active(node)) == (0, [1, 5])
    (found,) = node.node.troubles
    assert "partition 5-of-5-7 may be active, and no claim needs it any more: its note" in found.text
    prepare(node, claim)  # it is taken over, and noted
    unprepare(node, claim)
    assert active(node) == [1]


def test_a_claim_that_was_prepared_deactivates_its_partition_although_its_note_cannot_be_read(node: FabricNode) -> None:
    claim = node.whole_of("a", 5, 7)
    prepare(node, claim)
    (note,) = (node.folder / "ledger").glob("fabric-partition.*")
    note.write_bytes(b"torn")
    unprepare(node, claim)
    assert (active(node), list((node.folder / "ledger").glob("fabric-partition.*"))) == ([], [])


def test_a_file_with_another_name_among_the_notes_is_a_trouble_and_harms_nobody(node: FabricNode) -> None:
    prepare(node, node.whole_of("a", 5, 7))
    (note,) = (node.folder / "ledger").glob("fabric-partition.*")
    note.with_name("fabric-partition.copy.json").write_bytes(note.read_bytes())
    node.look()
    assert (told(node), sweep(node)) == ([], 0)
    assert "'copy' does not name a partition" in node.node.troubles[0].text
    node.manager.restart(resuming=True)
    node.look()
    assert active(node) == [5]


def test_a_partition_of_somebody_else_that_a_claim_had_before_is_left_alone(node: FabricNode) -> None:
    claim = node.whole_of("a", 1, 3)
    prepare(node, claim)
    things = node.node.ledger.things(FABRIC_PARTITION)
    unprepare(node, claim)
    node.manager.active = [3]
    settled = node.node.engine.settle(things, SWEEP, lambda: 1.0)
    assert (active(node), settled.acted, settled.problems) == ([3], (), {})


def test_a_claim_that_comes_while_a_sweep_looks_keeps_its_note(
    node: FabricNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep finds a note, the claim ends, and another one takes the same partition before the sweep goes on."""
    first, second = node.whole_of("a", 1, 3), node.whole_of("b", 1, 3)
    prepare(node, first)
    things, read, count = Ledger.things, Ledger.read, 0

    def ended_since(ledger: Ledger, kind: str) -> tuple[Thing, ...]:
        found = things(ledger, kind)
        monkeypatch.setattr(Ledger, "things", things)
        unprepare(node, first)
        monkeypatch.setattr(Ledger, "read", taken_since)
        return found

    def taken_since(ledger: Ledger, thing: Thing, noted: type[object]) -> object:
        nonlocal count
        found = read(ledger, thing, noted)
        if not count:
            count += 1
            prepare(node, second)
        return found

    monkeypatch.setattr(Ledger, "things", ended_since)
    assert sweep(node) == 0
    assert (count, active(node), node.noted_partitions()) == (1, [3], [3])
    node.look()
    assert told(node) == []


def sweep(node: FabricNode) -> int:
    return node.node.engine.sweep(FABRIC_PARTITION, node.node._told_of)


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
