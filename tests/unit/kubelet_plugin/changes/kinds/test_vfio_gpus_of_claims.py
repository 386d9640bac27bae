"""GPUs that are had whole, in shares, in MIG devices or by virtual machines: never in two ways at once, and with the
NVIDIA driver in the end. The search over the whole node (test_whole_node.py) does it in any order, with kills.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.passthrough import passthrough_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.changes.claim_changes import GpusBusyError
from dracaena.kubelet_plugin.claims.device_state import PrepareError
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.ports import EffectPendingError
from dracaena.kubelet_plugin.store.claim_files import ClaimFiles
from support.plugin import reference_to
from support.vfio_node import VfioNode, vfio_node

HOST, MACHINE = ("nvidia", "snd_hda_intel"), ("vfio-pci", "vfio-pci")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[VfioNode]:
    with vfio_node(tmp_path) as made:
        yield made


def prepare(node: VfioNode, claim: ResourceClaim) -> None:
    node.node.state.prepare(reference_to(claim))


def unprepare(node: VfioNode, claim: ResourceClaim) -> None:
    node.node.state.unprepare(reference_to(claim))


def test_a_gpu_is_bound_when_a_claim_gets_it_and_back_when_that_ends(node: VfioNode) -> None:
    claim = node.vfio("machine", 0, 1)
    prepare(node, claim)
    assert [node.drivers_of(0), node.drivers_of(1)] == [MACHINE, MACHINE]
    spec = json.loads(node.node.files()["cdi/gpu.dracaena.dev-claim_machine-uid.json"])
    paths = [[n["path"] for n in device["containerEdits"]["deviceNodes"]] for device in spec["devices"]]
    assert paths == [["/dev/vfio/vfio", "/dev/vfio/40"], ["/dev/vfio/vfio", "/dev/vfio/41"]]
    variable = "PCI_RESOURCE_NVIDIA_COM_H100_80GB_HBM3"
    assert spec["devices"][1]["containerEdits"]["env"] == [f"{variable}={node.addresses[1]}"]
    node.look()  # the NVIDIA driver shows none of them now
    node.node.recovery.follow_devices()
    assert [prepared.claim.name for prepared in node.done()] == ["machine"]
    node.restart()
    prepare(node, claim)
    unprepare(node, claim)
    assert [node.drivers_of(0), node.drivers_of(1)] == [HOST, HOST]
    assert node.node.node_claims.of(reference_to(claim).uid) is None


def test_the_gpu_driver_is_let_go_of_once_for_all_gpus_of_a_claim(node: VfioNode) -> None:
    claim = node.vfio("machine", 0, 1)
    prepare(node, claim)
    assert (node.drivers.closed, node.moved) == (1, 1)
    written = [path for path, _ in node.bus.written]
    unbound = [path for path in written if path == "bus/pci/drivers/nvidia/unbind"]
    assert written[: written.index("bus/pci/drivers/snd_hda_intel/unbind")].count(unbound[0]) == 2, "the GPUs first"
    unprepare(node, claim)
    assert (node.drivers.closed, node.moved) == (1, 2)


@pytest.mark.parametrize("stays", [0, 1])
def test_a_gpu_that_cannot_be_given_back_keeps_no_other_from_it(node: VfioNode, stays: int) -> None:
    claim, address = node.vfio("machine", 0, 1), node.addresses[stays]
    prepare(node, claim)
    node.bus.open_by[address] = [4711]
    with pytest.raises(TemporaryError, match="PID 4711"):
        unprepare(node, claim)
    assert (node.bus.driver_of(address), node.drivers_of(1 - stays)) == ("vfio-pci", HOST)
    assert node.moved == 2, "NVML is opened anew for the one"
    (checkpoint,) = node.node.node_claims.current()
    assert [effect.device for effect in checkpoint.prepared.wants] == [passthrough_device_name(address)]
    node.bus.close(address)
    unprepare(node, claim)
    assert node.drivers_of(stays) == HOST


def test_a_sound_card_that_stays_with_vfio_is_a_trouble_until_it_is_back(node: VfioNode) -> None:
    claim = node.vfio("machine")
    prepare(node, claim)
    node.bus.refusing = {"snd_hda_intel": errno.EIO}
    unprepare(node, claim)
    assert node.drivers_of(0) == ("nvidia", None)
    node.look()
    prepare(node, node.whole("other"))  # containers have the GPU
    assert node.give_back() == 0
    (told,) = node.node.troubles
    assert (told.reason, told.subject) == ("GpuNotGivenBack", node.addresses[0])
    assert "snd_hda_intel/bind: Input/output error" in told.text
    node.bus.refusing = {}
    node.restart()
    assert node.give_back() == 1
    assert node.drivers_of(0) == HOST
    assert node.node.troubles == []
    assert node.moved == 2, "NVML is opened anew for the GPU, and by no sweep for its sound card"


def test_each_way_to_have_a_gpu_excludes_the_others_before_a_reading_shows_it(node: VfioNode) -> None:
    ways = [node.whole("whole"), node.share("share"), node.part("part"), node.vfio("machine")]
    for first in ways:
        prepare(node, first)
        for other in ways:
            if other is not first:
                with pytest.raises(DeviceHeldError):
                    prepare(node, other)
        unprepare(node, first)
    assert node.drivers_of(0) == HOST


def test_a_divided_gpu_leaves_mig_mode_on_its_way(node: VfioNode) -> None:
    gpu = node.mig.hardware.gpus[0]
    gpu.mode = gpu.pending = True
    prepare(node, node.vfio("machine"))
    assert not gpu.mode
    gpu = node.mig.hardware.gpus[1]
    gpu.mode = gpu.pending = True
    node.mig.hardware.put(1, "1g.10gb", 0)  # a stranger's
    with pytest.raises(TemporaryError, match="IN_USE"):
        prepare(node, node.vfio("other", 1))
    assert node.drivers_of(1) == HOST


def test_a_gpu_that_an_admin_divides_stays_as_it_is(node: VfioNode) -> None:
    node.divided = ""
    node.restart()
    node.mig.hardware.put(0, "1g.10gb", 0)  # since the GPUs were last read
    layout = node.mig.hardware.layout(0)
    words = f"is in MIG mode, which an admin changes .*`nvidia-smi -i {node.addresses[0]} -mig 0`"
    for refusal in (TemporaryError, PrepareError):
        with pytest.raises(refusal, match=words):
            prepare(node, node.vfio("machine"))
        assert (node.bus.written, node.drivers.closed) == ([], 0)
        assert node.mig.hardware.layout(0) == layout
        node.look()  # now the reading has it, and it is refused by that
    prepare(node, node.vfio("other", 1))


def test_of_several_gpus_all_are_bound_or_none(node: VfioNode) -> None:
    node.bus.open_by[node.addresses[1]] = [4711]
    claim = node.vfio("machine", 0, 1)
    with pytest.raises(TemporaryError, match=f"{node.addresses[1]} is open in python"):
        prepare(node, claim)
    assert [node.drivers_of(0), node.drivers_of(1)] == [HOST, HOST]
    assert node.node.node_claims.of(reference_to(claim).uid) is None


def test_an_unbind_that_hangs_holds_the_gpu_until_the_process_ends(node: VfioNode) -> None:
    address = node.addresses[0]

    def opened(path: str) -> None:
        if path.endswith("nvidia/unbind"):
            node.bus.open_by[address] = [4711]

    node.drivers.before_write = opened
    claim, other = node.vfio("machine"), node.whole("other")
    with pytest.raises(EffectPendingError):
        prepare(node, claim)
    node.restart()
    with pytest.raises(DracaenaError, match=r"python \(PID 4711\)"):
        unprepare(node, claim)
    with pytest.raises(DracaenaError):
        prepare(node, other)
    node.bus.close(address)
    unprepare(node, claim)
    assert node.drivers_of(0) == HOST
    node.look()
    prepare(node, other)


def test_after_a_power_cut_the_journal_of_the_boot_before_is_forgotten(node: VfioNode) -> None:
    claim = node.vfio("machine")
    prepare(node, claim)
    node.reboot()
    assert node.drivers_of(0) == HOST
    node.bus.written.clear()
    unprepare(node, claim)
    assert node.bus.written == []
    prepare(node, claim)
    unprepare(node, claim)
    assert node.drivers_of(0) == HOST


def broken(node: VfioNode, claim: ResourceClaim) -> None:
    """Break a claim's checkpoint; the plugin is started anew and reads the GPUs."""
    (node.folder / "claims" / f"{claim.metadata.uid}.json").write_bytes(b"no checkpoint")
    node.restart()


def test_a_gpu_whose_claim_lost_its_checkpoint_goes_back_when_the_claim_ends(node: VfioNode) -> None:
    claim = node.vfio("machine", 0, 1)
    prepare(node, claim)
    broken(node, claim)
    prepare(node, claim)  # kubelet asks again, or the plugin recovers it
    unprepare(node, claim)
    assert [node.drivers_of(0), node.drivers_of(1)] == [HOST, HOST]
    assert node.give_back() == 0


def lost(node: VfioNode, claim: ResourceClaim) -> None:
    """Lose all that a claim has on the node but the ledger, as a disk may."""
    (node.folder / "claims" / f"{claim.metadata.uid}.json").unlink()
    (node.folder / f"cdi/gpu.dracaena.dev-claim_{claim.metadata.uid}.json").unlink()
    node.restart()


def test_one_whose_claim_ends_without_a_checkpoint_is_given_back_once_nobody_has_it_open(node: VfioNode) -> None:
    claim = node.vfio("machine")
    prepare(node, claim)
    broken(node, claim)
    assert node.give_back() == 0, "the claim may have it"
    node.bus.open_by[node.addresses[0]] = [4711]
    with pytest.raises(TemporaryError, match="PID 4711"):
        unprepare(node, claim)
    assert node.drivers_of(0) == MACHINE
    with pytest.raises(DeviceHeldError):
        prepare(node, node.vfio("early"))
    node.bus.close(node.addresses[0])
    unprepare(node, claim)
    assert (node.drivers_of(0), node.noted()) == (HOST, set())
    node.look()
    prepare(node, node.whole("other"))


def test_one_whose_claim_left_nothing_but_a_note_is_swept_once_nobody_has_it_open(node: VfioNode) -> None:
    claim = node.vfio("machine")
    prepare(node, claim)
    lost(node, claim)
    node.bus.open_by[node.addresses[0]] = [4711]
    assert node.give_back() == 0
    (told,) = node.node.troubles
    assert (told.reason, told.subject) == ("GpuNotGivenBack", node.addresses[0])
    assert "python (PID 4711)" in told.text
    node.bus.close(node.addresses[0])
    assert node.give_back() == 1
    assert node.drivers_of(0) == HOST
    assert node.node.troubles == []


def test_a_gpu_that_a_call_is_at_work_on_is_left_to_that(node: VfioNode) -> None:
    claim = node.vfio("machine")
    prepare(node, claim)
    lost(node, claim)
    with node.node.gpu_lock(passthrough_device_name(node.addresses[0]))._lock:  # another thread's
        assert node.give_back() == 0
    assert node.node.troubles == []
    assert node.drivers_of(0) == MACHINE


def test_a_gpu_has_one_lock_whichever_driver_it_is_named_by(node: VfioNode) -> None:
    """Who divides it by MIG and who binds it to VFIO wait for each other."""
    with node.node.gpu_lock(passthrough_device_name(node.addresses[0]))._lock:  # another thread's
        with pytest.raises(GpusBusyError):
            prepare(node, node.part("part"))
        prepare(node, node.part("other", 1))
    assert node.mig.hardware.layout(0) == []


def test_a_claim_that_lost_all_its_files_is_not_rolled_back_when_it_is_prepared_again(
    node: VfioNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its virtual machine may run, by what the ledger says."""
    claim = node.vfio("machine")
    prepare(node, claim)
    lost(node, claim)

    def full(*_given: object) -> None:
        raise TemporaryError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ClaimFiles, "write", full)
        with pytest.raises(TemporaryError, match="the disk is full"):
            prepare(node, claim)
    assert node.drivers_of(0) == MACHINE
    prepare(node, claim)
    unprepare(node, claim)
    assert node.drivers_of(0) == HOST
