"""Binding GPUs to VFIO and back on a PCI bus that answers as the kernel does, killed at each write."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.api.passthrough import passthrough_device_name
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.changes.change import ForOwner, Note, Thing
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.kinds.vfio_gpus import HostFunction, NotedVfioGpu, VfioGpus, not_given_back
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.changes.pci_hand import PciHand
from dracaena.kubelet_plugin.ports import EffectPendingError, OpeningProcess
from dracaena.kubelet_plugin.prepare.effects import VFIO_BIND, Effect, Scalar
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from support.changed_node import ClaimsOfNode
from support.fake_pci import AUDIO_CLASS, BRIDGE_CLASS, NVIDIA, FakePciBus
from support.fake_pci_drivers import PERSISTENCED, FakePciDrivers
from support.killed_steps import CountedSteps
from support.plugin import ThreadLock

GPU, AUDIO, OTHER = "0000:18:00.0", "0000:18:00.1", "0000:3b:00.0"
HOST = {GPU: "nvidia", AUDIO: "snd_hda_intel", OTHER: "nvidia"}
MACHINE = {GPU: "vfio-pci", AUDIO: "vfio-pci", OTHER: "nvidia"}
NOTED = NotedVfioGpu((HostFunction(GPU, "nvidia"), HostFunction(AUDIO, "snd_hda_intel")))
UID = ClaimUid("claim-uid")
NOT_YET = "is not yet as it was before a claim had it"


@pytest.fixture
def bus(tmp_path: Path) -> FakePciBus:
    made = FakePciBus(tmp_path)
    made.add(GPU, 7, driver="nvidia")
    made.add(AUDIO, 7, driver="snd_hda_intel", ids=(NVIDIA, 0x22BA), pci_class=AUDIO_CLASS)
    made.add("0000:17:00.0", 7, driver="pcieport", ids=(0x8086, 0x352A), pci_class=BRIDGE_CLASS)
    made.add(OTHER, 8, driver="nvidia")
    made.load("vfio_pci")
    return made


def drivers_of(bus: FakePciBus) -> Mapping[str, str | None]:
    return {address: bus.driver_of(address) for address in HOST}


class Claimed:
    """One claim that wants a GPU, and processes of the plugin that settle that, one after the other."""

    def __init__(self, bus: FakePciBus, address: str = GPU) -> None:
        self.bus = bus
        self.thing = Thing(VFIO_BIND, passthrough_device_name(address))
        self.parameters: Mapping[str, Scalar] = {}
        self.claims = ClaimsOfNode()
        self.boot = "boot-1"
        self.has_persistenced = False
        self.start()

    def start(self, left: int = 1 << 30, **given: object) -> None:
        """Start a process that lives for so many steps: two of each write to /sys, and two of each note."""
        self.drivers = FakePciDrivers(self.bus, left=left, **given)  # type: ignore[arg-type]
        files = DocumentFolder(self.bus.root / "ledger", steps=CountedSteps(self.drivers._count), synced=False)
        self.ledger = Ledger(files, ThreadLock(), self.boot)
        self.settle_by(self.kind())

    def kind(self, holders: Any = None, without_gpu_driver: Any = None) -> VfioGpus:
        drivers = self.drivers
        return VfioGpus(
            drivers,
            PciHand(drivers, holders or drivers.holders),
            without_gpu_driver or drivers.without_gpu_driver,
            persistence=drivers if self.has_persistenced else None,
        )

    def settle_by(self, kind: VfioGpus) -> None:
        self.engine = ChangeEngine(
            ledger=self.ledger,
            kinds=[kind],
            claims=self.claims,  # type: ignore[arg-type]
            gpu_lock=lambda _gpu: ThreadLock(),
        )

    def lose(self) -> None:
        """The checkpoint broke: the claim is planned anew, or ends."""
        self.claims.good.clear()
        self.claims.broken.add(UID)

    def apply(self) -> None:
        effect = Effect(VFIO_BIND, DeviceName(self.thing.name), DeviceName(self.thing.name), None, self.parameters)
        claim = PreparedClaim(ClaimReference("default", "claim", UID), (), wants=(effect,))
        self.claims.good[UID] = Checkpoint(State.STARTED, self.boot, claim)
        self.claims.broken.clear()
        self._settle(ForOwner(begins=UID))

    def undo(self) -> None:
        self._settle(ForOwner(ends=UID))
        self.claims.good.clear()
        self.claims.broken.clear()

    def sweep(self) -> str:
        """Sweep; return what admins are told, empty if nothing."""
        told: list[Trouble] = []
        self.engine.sweep(VFIO_BIND, lambda found, _: told.extend(found))
        return "; ".join(each.text.removeprefix(f"the GPU at {GPU} {NOT_YET}: ") for each in told)

    def _settle(self, call: ForOwner) -> None:
        for problem in self.engine.settle([self.thing], call, lambda: 1.0).problems.values():
            raise problem

    def noted(self) -> NotedVfioGpu | None:
        note = self.ledger.read(self.thing, NotedVfioGpu)
        return note.noted if isinstance(note, Note) else None


@pytest.fixture
def journal(bus: FakePciBus) -> Claimed:
    return Claimed(bus)


def test_all_functions_of_a_group_are_bound_and_given_back_to_the_drivers_that_they_had(journal: Claimed) -> None:
    journal.apply()
    assert drivers_of(journal.bus) == MACHINE
    assert journal.noted() == NOTED
    assert journal.bus.driver_of("0000:17:00.0") == "pcieport", "bridges stay with the host"
    journal.undo()
    assert drivers_of(journal.bus) == HOST
    for address in HOST:
        assert journal.drivers.override(address) is None, "the next driver that comes may take it"


def test_the_drivers_are_noted_before_the_first_write(bus: FakePciBus) -> None:
    journal = Claimed(bus)
    known: list[object] = []
    journal.drivers.before_write = lambda _path: known.append(journal.noted())
    journal.apply()
    assert set(known) == {NOTED}


def test_the_plugins_own_handles_are_closed_for_the_unbinding_of_a_gpu_alone(journal: Claimed) -> None:
    journal.drivers.own = {GPU: [1]}
    journal.apply()
    assert journal.drivers.closed == 1
    journal.drivers.own = {}  # NVML shows no GPU that VFIO has, so nobody of ours opens it
    journal.undo()
    assert journal.drivers.closed == 1
    assert drivers_of(journal.bus) == HOST


def test_a_gpu_that_a_process_has_open_is_not_touched_and_the_process_is_named(journal: Claimed) -> None:
    journal.bus.open_by[GPU] = [4711, 17]
    with pytest.raises(TemporaryError, match=r"0000:18:00.0 is open in python \(PID 17\), python \(PID 4711\)"):
        journal.apply()
    assert journal.bus.written == []
    journal.undo()
    assert journal.bus.written == []
    assert drivers_of(journal.bus) == HOST


def persistent(journal: Claimed, address: str = GPU) -> bool:
    return PERSISTENCED in journal.bus.open_by.get(address, [])


@pytest.fixture
def kept(bus: FakePciBus) -> Claimed:
    """A node on which nvidia-persistenced has all GPUs open."""
    for address in (GPU, OTHER):
        bus.open_by[address] = [PERSISTENCED]
    journal = Claimed(bus)
    journal.has_persistenced = True
    journal.start()
    return journal


def test_nvidia_persistenced_lets_go_of_the_one_gpu_and_has_it_again_afterwards(kept: Claimed) -> None:
    kept.apply()
    assert drivers_of(kept.bus) == MACHINE
    assert (persistent(kept), persistent(kept, OTHER)) == (False, True)
    kept.start()
    kept.undo()
    assert drivers_of(kept.bus) == HOST
    assert (persistent(kept), persistent(kept, OTHER)) == (True, True)
    assert kept.noted() is None


def test_a_gpu_that_it_does_not_have_is_not_given_to_it(kept: Claimed) -> None:
    kept.bus.close(GPU)
    kept.apply()
    kept.undo()
    assert not persistent(kept)


def test_a_gpu_that_another_process_has_open_too_goes_back_to_nvidia_persistenced(kept: Claimed) -> None:
    kept.bus.open_by[GPU].append(4711)
    with pytest.raises(TemporaryError, match=r"is open in python \(PID 4711\): the kernel"):
        kept.apply()
    kept.undo()
    assert persistent(kept)
    assert kept.bus.written == []


def test_where_it_cannot_be_asked_the_claim_waits_with_that_reason(kept: Claimed) -> None:
    kept.drivers.persistence_problem = "`nvidia-smi -i 0000:18:00.0 -pm 0` says: no"
    with pytest.raises(TemporaryError, match="-pm 0` says: no"):
        kept.apply()
    assert kept.bus.written == []


def test_persistence_that_cannot_be_switched_on_again_holds_no_claim_and_is_tried_again(kept: Claimed) -> None:
    kept.apply()
    kept.drivers.persistence_problem = "`nvidia-smi -i 0000:18:00.0 -pm 1` says: no"
    kept.undo()
    assert drivers_of(kept.bus) == HOST
    assert not_given_back(kept.ledger) is None
    assert kept.sweep() == (
        "persistence mode of the GPU at 0000:18:00.0 is off, and cannot be switched on again: `nvidia-smi -i "
        "0000:18:00.0 -pm 1` says: no; on the node: `systemctl restart nvidia-persistenced`"
    )
    kept.apply()
    kept.undo()
    assert not persistent(kept)
    kept.start()
    assert kept.sweep() == ""
    assert persistent(kept)
    assert kept.noted() is None


def test_a_claim_whose_journal_is_lost_gives_persistence_back_too(kept: Claimed) -> None:
    kept.apply()
    kept.lose()
    kept.start()
    kept.undo()
    assert (drivers_of(kept.bus), persistent(kept)) == (HOST, True)


def test_a_gpu_that_a_virtual_machine_has_open_stays_with_vfio(journal: Claimed) -> None:
    journal.apply()
    journal.bus.open_by[GPU] = [99]
    with pytest.raises(TemporaryError, match=r"open in python \(PID 99\)"):
        journal.undo()
    assert journal.noted() == NOTED
    journal.bus.close(GPU)
    journal.undo()
    assert drivers_of(journal.bus) == HOST


def opens(bus: FakePciBus, address: str) -> Callable[[str], None]:
    """A process that opens a device between the look and the write."""

    def before(path: str) -> None:
        if path.endswith("/unbind"):
            bus.open_by[address] = [4711]

    return before


def test_an_unbind_that_hangs_keeps_the_note_and_is_gone_on_with_once_it_ends(journal: Claimed) -> None:
    journal.drivers.before_write = opens(journal.bus, GPU)
    with pytest.raises(EffectPendingError, match="waits in the kernel"):
        journal.apply()
    journal.start()  # the child of the process before is still there
    for attempt in (journal.apply, journal.undo):
        with pytest.raises(EffectPendingError, match=r"earlier write .* is closed: python \(PID 4711\)"):
            attempt()
    journal.bus.close(GPU)
    journal.apply()
    assert drivers_of(journal.bus) == MACHINE
    journal.undo()
    assert drivers_of(journal.bus) == HOST


def test_where_nobody_can_tell_who_has_a_gpu_open_nothing_is_written_and_no_journal_goes(journal: Claimed) -> None:
    def unknown(_address: str, _group: int | None) -> tuple[OpeningProcess, ...]:
        raise TemporaryError("who has a GPU open cannot be told")

    journal.settle_by(journal.kind(unknown))
    with pytest.raises(TemporaryError, match="cannot be told"):
        journal.apply()
    assert journal.bus.written == []
    journal.start()
    journal.drivers.before_write = opens(journal.bus, GPU)
    with pytest.raises(EffectPendingError, match="waits in the kernel"):
        journal.apply()
    journal.settle_by(journal.kind(unknown))
    for attempt in (journal.apply, journal.undo):
        with pytest.raises(EffectPendingError, match=r"is closed: who has a GPU open cannot be told"):
            attempt()


def test_after_an_unbind_that_hung_the_claim_can_also_end(journal: Claimed) -> None:
    journal.drivers.before_write = opens(journal.bus, GPU)
    with pytest.raises(EffectPendingError):
        journal.apply()
    journal.bus.close(GPU)
    journal.undo()
    assert drivers_of(journal.bus) == HOST


def test_an_unbinding_that_nobody_waits_for_any_more_takes_no_gpu_away(journal: Claimed) -> None:
    """The driver's thread was busy for longer than its caller waits, and does the work after the claim has ended."""
    late: list[Callable[[], None]] = []

    def busy(_what: str, work: Callable[[], None]) -> None:
        late.append(work)
        raise EffectPendingError("the NVIDIA driver does not answer")

    journal.settle_by(journal.kind(without_gpu_driver=busy))
    with pytest.raises(EffectPendingError):
        journal.apply()
    assert journal.noted() == NOTED
    journal.undo()
    with pytest.raises(TemporaryError, match="its caller has given up"):
        late[0]()
    assert journal.bus.written == []
    assert drivers_of(journal.bus) == HOST


def test_an_unbinding_whose_caller_gives_up_between_its_two_writes_makes_no_second(journal: Claimed) -> None:
    began, given_up = threading.Event(), threading.Event()
    failed: list[TemporaryError] = []

    def override(path: str) -> None:
        assert path.endswith("/driver_override")
        began.set()
        given_up.wait()

    def busy(_what: str, work: Callable[[], None]) -> None:
        def late() -> None:
            try:
                work()
            except TemporaryError as error:
                failed.append(error)

        threads.append(threading.Thread(target=late))
        threads[0].start()
        began.wait()
        raise EffectPendingError("the NVIDIA driver does not answer")

    threads: list[threading.Thread] = []
    journal.drivers.before_write = override
    journal.settle_by(journal.kind(without_gpu_driver=busy))
    with pytest.raises(EffectPendingError):
        journal.apply()
    given_up.set()
    threads[0].join()
    (error,) = failed
    assert "its caller has given up" in str(error)
    assert journal.bus.driver_of(GPU) == "nvidia"
    journal.drivers.before_write = lambda _path: None
    journal.undo()
    assert drivers_of(journal.bus) == HOST
    assert journal.drivers.override(GPU) is None


def test_an_unbind_that_could_be_ended_is_undone(bus: FakePciBus) -> None:
    journal = Claimed(bus)
    journal.start(can_end=True)
    journal.drivers.before_write = opens(bus, GPU)
    with pytest.raises(TemporaryError, match="was ended"):
        journal.apply()
    bus.close(GPU)
    journal.undo()
    assert drivers_of(bus) == HOST


def test_a_driver_that_refuses_to_bind_is_told_and_all_functions_go_back(journal: Claimed) -> None:
    journal.bus.refusing["vfio-pci"] = errno.EINVAL
    words = "the kernel refuses 0000:18:00.0 in /sys/bus/pci/drivers/vfio-pci/bind: Invalid argument; look at `dmesg`"
    with pytest.raises(TemporaryError, match=words):
        journal.apply()
    journal.undo()
    assert drivers_of(journal.bus) == HOST


def test_a_driver_that_refuses_to_take_a_gpu_back_keeps_the_note(journal: Claimed) -> None:
    journal.apply()
    journal.bus.refusing["nvidia"] = errno.ENODEV
    with pytest.raises(TemporaryError, match="bus/pci/drivers/nvidia/bind: No such device"):
        journal.undo()
    assert journal.noted() == NOTED
    journal.bus.refusing.clear()
    journal.undo()
    assert drivers_of(journal.bus) == HOST


def test_a_driver_that_is_not_loaded_any_more_takes_the_gpu_when_it_comes(journal: Claimed) -> None:
    journal.apply()
    journal.bus.write("bus/pci/drivers/nvidia/unbind", OTHER)
    journal.bus.unload("nvidia")
    journal.undo()
    assert drivers_of(journal.bus) == {GPU: None, AUDIO: "snd_hda_intel", OTHER: None}
    journal.bus.load("nvidia")
    assert drivers_of(journal.bus) == HOST


def test_without_the_module_nothing_is_written(bus: FakePciBus) -> None:
    bus.unload("vfio_pci")
    with pytest.raises(
        TemporaryError, match="needs the driver of kernel module vfio_pci, which is not loaded: run `modprobe vfio_pci`"
    ):
        Claimed(bus).apply()
    assert bus.written == []


def test_for_iommufd_nothing_is_bound_on_a_node_without_it(journal: Claimed) -> None:
    journal.parameters = {"iommufd": True}
    with pytest.raises(TemporaryError, match=r"/dev/iommu is missing.*run `modprobe iommufd`"):
        journal.apply()
    assert journal.bus.written == []
    (journal.bus.root / "class/misc/iommu").mkdir(parents=True)
    journal.apply()
    assert drivers_of(journal.bus) == MACHINE


def test_the_variant_that_a_product_needs_is_taken_and_vfio_pci_never_in_its_place(bus: FakePciBus) -> None:
    journal = Claimed(bus)
    aliases = [
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci",
        "alias vfio_pci:v000010DEd00002330sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci",
    ]
    journal.start(aliases=aliases)
    with pytest.raises(
        TemporaryError, match=r"needs the driver of kernel module nvgrace_gpu_vfio_pci, .* `modprobe nvg"
    ):
        journal.apply()
    assert bus.written == []
    bus.load("nvgrace_gpu_vfio_pci")
    journal.apply()
    assert drivers_of(bus) == {GPU: "nvgrace_gpu_vfio_pci", AUDIO: "vfio-pci", OTHER: "nvidia"}
    journal.undo()
    assert drivers_of(bus) == HOST


def test_a_gpu_that_an_admin_bound_stays_his(journal: Claimed) -> None:
    for address in (GPU, AUDIO):
        journal.bus.rebind(address, "vfio-pci")
    journal.bus.written.clear()
    journal.apply()
    journal.undo()
    assert journal.bus.written == []
    assert drivers_of(journal.bus) == MACHINE


def test_a_gpu_of_a_claim_whose_checkpoint_broke_is_taken_up_again_or_given_back(journal: Claimed) -> None:
    journal.apply()
    journal.lose()
    journal.start()
    journal.apply()
    assert journal.noted() == NOTED
    journal.lose()
    journal.start()
    assert (journal.sweep(), drivers_of(journal.bus)) == ("", MACHINE), "the claim may live"
    journal.undo()
    assert drivers_of(journal.bus) == HOST
    assert journal.noted() is None
    for address in (GPU, AUDIO):
        journal.bus.rebind(address, "vfio-pci")
    journal.apply()
    assert journal.noted() is None, "this time an admin has bound it"


def test_what_was_bound_in_an_earlier_boot_is_not_taken_for_ours(journal: Claimed) -> None:
    journal.apply()
    journal.lose()
    journal.boot = "boot-2"
    journal.start()
    journal.bus.written.clear()
    journal.apply()
    journal.undo()
    assert journal.bus.written == [], "at boot somebody else has bound it"


def test_what_an_admin_had_overridden_is_overridden_again(bus: FakePciBus) -> None:
    bus.load("pci_stub")
    bus.rebind(AUDIO, "pci-stub")
    bus.write(f"bus/pci/devices/{GPU}/driver_override", "nvidia")
    before = drivers_of(bus)
    journal = Claimed(bus)
    journal.apply()
    assert drivers_of(bus) == MACHINE
    journal.undo()
    assert drivers_of(bus) == before
    assert (journal.drivers.override(GPU), journal.drivers.override(AUDIO)) == ("nvidia", "pci-stub")


@pytest.mark.parametrize("override", ["none", "vfio-pci"])
def test_an_override_that_no_driver_fits_does_not_keep_the_former_driver_away(bus: FakePciBus, override: str) -> None:
    for address in (GPU, AUDIO):
        bus.write(f"bus/pci/devices/{address}/driver_override", override)  # for the next boot: both stay bound
    bus.write("bus/pci/drivers/snd_hda_intel/unbind", AUDIO)
    journal = Claimed(bus)
    journal.apply()
    journal.undo()
    assert drivers_of(bus) == HOST | {AUDIO: None}
    assert (journal.drivers.override(GPU), journal.drivers.override(AUDIO)) == (override, override)


def test_an_override_that_names_no_driver_is_refused_before_anything_is_written(bus: FakePciBus) -> None:
    (bus.device(AUDIO) / "driver_override").write_text("a b\n")
    with pytest.raises(TemporaryError, match=r"driver_override of 0000:18:00.1 is 'a b', expected the name of a dr"):
        Claimed(bus).apply()
    assert bus.written == []


def test_a_sound_card_that_its_driver_refuses_holds_neither_claim_nor_gpu(journal: Claimed) -> None:
    journal.apply()
    journal.bus.refusing["snd_hda_intel"] = errno.EIO
    journal.undo()
    assert drivers_of(journal.bus) == HOST | {AUDIO: None}
    assert not_given_back(journal.ledger) is None
    words = "the kernel refuses 0000:18:00.1 in /sys/bus/pci/drivers/snd_hda_intel/bind: Input/output error"
    assert words in journal.sweep()
    journal.apply()
    assert drivers_of(journal.bus) == MACHINE
    journal.undo()
    journal.bus.refusing.clear()
    assert journal.sweep() == ""
    assert drivers_of(journal.bus) == HOST
    assert journal.noted() is None


def test_a_sound_card_that_is_opened_while_the_gpu_goes_back_stays_alone(journal: Claimed) -> None:
    journal.apply()

    def opened(path: str) -> None:
        if path.endswith("nvidia/bind"):
            journal.bus.open_by[AUDIO] = [4711]

    journal.drivers.before_write = opened
    journal.undo()
    assert drivers_of(journal.bus) == HOST | {AUDIO: "vfio-pci"}
    assert "0000:18:00.1 is open in python (PID 4711)" in journal.sweep()
    journal.bus.close(AUDIO)
    assert journal.sweep() == ""
    assert drivers_of(journal.bus) == HOST


@pytest.mark.parametrize("opened", [GPU, AUDIO])
def test_nothing_is_given_back_while_a_process_has_any_function_open(journal: Claimed, opened: str) -> None:
    journal.apply()
    journal.bus.written.clear()
    journal.bus.open_by[opened] = [99]  # by iommufd: the node of the group is closed
    with pytest.raises(TemporaryError, match=rf"{opened} is open in python \(PID 99\)"):
        journal.undo()
    assert journal.bus.written == []


def test_a_sound_card_that_a_process_has_open_is_not_taken_from_its_driver(journal: Claimed) -> None:
    def opened(path: str) -> None:
        if path.endswith("nvidia/unbind"):
            journal.bus.open_by[AUDIO] = [4711]

    journal.drivers.before_write = opened
    with pytest.raises(TemporaryError, match=r"0000:18:00.1 is open in python \(PID 4711\)"):
        journal.apply()
    assert not journal.bus.is_hanging(AUDIO)
    journal.undo()
    assert drivers_of(journal.bus) == HOST


def test_a_gpu_whose_note_is_broken_is_named_and_stays(journal: Claimed) -> None:
    journal.apply()
    (note,) = (journal.bus.root / "ledger").iterdir()
    note.write_bytes(b"torn")
    journal.start()
    journal.bus.written.clear()
    journal.apply()
    journal.undo()
    assert journal.sweep() == (
        "its note vfio-bind.vfio-0000-18-00-0.json is broken (JSON is malformed: invalid character (byte 4)), so it is "
        "not known whether a claim or an admin had it bound: `driverctl unset-override 0000:18:00.0` gives it back; to "
        "leave it to VFIO, remove that file from the plugin's folder `ledger`"
    )
    assert journal.bus.written == []
    for address in (GPU, AUDIO):
        journal.bus.write(f"bus/pci/devices/{address}/driver_override", "")
        journal.bus.write("bus/pci/drivers/vfio-pci/unbind", address)
        journal.bus.write("bus/pci/drivers_probe", address)
    assert journal.sweep() == ""
    assert list((journal.bus.root / "ledger").iterdir()) == []


def test_a_broken_note_of_a_gpu_that_the_host_has_again_is_replaced(journal: Claimed) -> None:
    (journal.bus.root / "ledger").mkdir()
    (journal.bus.root / "ledger/vfio-bind.vfio-0000-18-00-0.json").write_bytes(b"torn")
    journal.apply()
    assert journal.noted() == NOTED
    journal.undo()
    assert (drivers_of(journal.bus), journal.noted()) == (HOST, None)


@pytest.mark.parametrize("file", ["driver_override", "unbind", "bind"])
def test_a_write_that_took_effect_and_was_not_answered_is_found_done(bus: FakePciBus, file: str) -> None:
    journal = Claimed(bus)
    journal.drivers.unanswered = lambda path: path.endswith(f"/{file}")
    with pytest.raises(TemporaryError, match="was ended"):
        journal.apply()
    journal.drivers.unanswered = lambda _path: False
    journal.apply()
    assert drivers_of(bus) == MACHINE
    journal.drivers.unanswered = lambda path: path.endswith(f"/{file}")
    with pytest.raises(TemporaryError, match="was ended"):
        journal.undo()
    journal.drivers.unanswered = lambda _path: False
    journal.undo()
    assert drivers_of(bus) == HOST


def test_a_function_that_had_no_driver_gets_none_back(journal: Claimed) -> None:
    journal.bus.write("bus/pci/drivers/snd_hda_intel/unbind", AUDIO)
    journal.apply()
    assert drivers_of(journal.bus) == MACHINE
    journal.undo()
    assert drivers_of(journal.bus) == HOST | {AUDIO: None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda bus: bus.add("0000:18:01.0", 7, driver="nvidia"), "also holds 0000:18:01.0"),
        (lambda bus: (bus.device(GPU) / "boot_vga").write_text("1\n"), "drives the display of the machine"),
        (lambda bus: (bus.device(GPU) / "sriov_numvfs").write_text("4\n"), "has 4 virtual functions"),
        (lambda bus: (bus.device(GPU) / "iommu_group").unlink(), "in no IOMMU group"),
        (lambda bus: (bus.device(GPU) / "vendor").write_text("junk\n"), "no GPU at 0000:18:00.0"),
    ],
)
def test_what_cannot_be_handed_over_as_a_whole_is_refused(
    journal: Claimed, change: Callable[[FakePciBus], object], words: str
) -> None:
    change(journal.bus)
    with pytest.raises(TemporaryError, match=words):
        journal.apply()
    assert journal.bus.written == []
