"""The devices of this node by the last reading: what prepare works with, and what is published."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from dracaena.api import limits
from dracaena.api.confidential import MODE_STATE_LABEL, cc_mode_label
from dracaena.api.errors import TemporaryError
from dracaena.api.machine import Machine
from dracaena.api.mig_geometry import MigPlace
from dracaena.api.names import DeviceName, PoolName, gpu_device_name
from dracaena.api.objects import Taint
from dracaena.api.passthrough import pci_bus_id_in
from dracaena.api.resource_objects import CounterSet, Device
from dracaena.host.facts.troubles import TroubleKind, trouble
from dracaena.kubelet_plugin.device_kinds.allocatable import allocatable, counter_pages
from dracaena.kubelet_plugin.device_kinds.device_kind import GpuRoles
from dracaena.kubelet_plugin.device_kinds.partition_effects import is_foreign
from dracaena.kubelet_plugin.discovery.confidential import mode_troubles, with_modes_of_guests
from dracaena.kubelet_plugin.discovery.gpu_list import ALL_WHOLE, GpuList, GpuRole
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice
from dracaena.kubelet_plugin.discovery.mig.on_demand import (
    DividedGpus,
    as_published,
    divided_gpus,
    taken_by_others,
    vanished,
)
from dracaena.kubelet_plugin.discovery.publish.pool import Page
from dracaena.kubelet_plugin.discovery.publish.sharing import shared_gpus
from dracaena.kubelet_plugin.discovery.vm.passthrough import divided_by_mig, passthrough_trouble
from dracaena.kubelet_plugin.node.context import NodeContext
from dracaena.kubelet_plugin.node.pool import node_pool, preparable_pages
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool

_TAKEN = (
    "GPU {gpu} has MIG instances that no claim made: claims get neither their slices nor the whole GPU. To use them as "
    "they are, select the GPU as `whole` in `gpus`; otherwise find them (`nvidia-smi mig -i {gpu} -lgi`) and destroy "
    "each by its number (with `-gi NUMBER -dci` if it has a compute instance, then `-gi NUMBER -dgi`): without a "
    "number, those of claims go too"
)

GONE = "mig-device"
"""Key of the taint of a place whose claim's MIG device is gone, after the driver's name."""

FABRIC_PARTITION = "fabric-partition"
"""Key of the taint of GPUs in a Fabric Manager partition that is active although no claim has it."""

FOREIGN = "foreign"

PENDING = "pending"
"""Value of the taint on devices of GPUs whose layout is about to change."""

CHANGING = "changing"
"""Value of the taint on all devices while the mode of confidential computing of the GPUs is about to change."""

EVERY_GPU = "*"
"""Used instead of a name from gpu_of(): all devices of the node are withheld."""

_Modes = tuple[Mapping[str, str], Mapping[str, str]]
"""Labels of the Node about modes, and modes of GPUs for virtual machines by PCI address."""

log = structlog.get_logger()


class DevicesUnknownError(TemporaryError):
    """The machine has not been read yet."""


@dataclass(frozen=True, slots=True)
class PublishingRules:
    """What the settings say of what is published."""

    tainted: bool
    """Whether each device gets the taint that keeps kube-scheduler from allocating it."""
    watched: bool = False
    """Nothing is published before the first take_taints(): a broken device must not be offered for the second until its
    health is read."""
    laid_out: frozenset[str] = frozenset()
    """Nothing is published before the first withhold() with each of these keys: a GPU that waits for its layout must
    not be offered when the plugin restarts."""
    gpu_list: GpuList = ALL_WHOLE


class NodeDevices:
    """Keeps the pool of the last reading. From any thread; never blocks.

    With `guest_modes`, modes of confidential computing are switched by another part of the plugin, which also reports
    modes that differ.
    """

    def __init__(
        self,
        context: NodeContext,
        rules: PublishingRules,
        *,
        publish: Callable[[Sequence[Page]], None],
        waiting_for: Callable[[], str | None],
        own_places: Callable[[], Collection[DeviceName]] = tuple,
        made_devices: Callable[[], Mapping[DeviceName, MadeDevice]] = dict,
        labels: Callable[[], Mapping[str, str]] = dict,
        guest_modes: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        """`own_places` returns where MIG devices of claims may lie, `made_devices` those that must exist. `labels`
        returns the Node's labels; `guest_modes`, if modes are switched, those by PCI address.
        """
        self._driver, self._rules = context.driver, rules
        self._metrics, self._troubles = context.metrics, context.troubles
        self._name = PoolName(context.node_name)
        self._publish, self._waiting_for = publish, waiting_for
        self._own_places, self._made_devices = own_places, made_devices
        self._labels, self._guest_modes = labels, guest_modes
        self._first_indices: Mapping[int, str] = {}  # replaced whole, never changed
        # Only for the thread that calls take() and look_again():
        self._machine: Machine | None = None  # the last one, None if none of its GPUs is divided on demand
        self._taken: Mapping[str, Mapping[str, int]] = {}
        self._missing: Mapping[DeviceName, str] = {}  # MIG devices of claims that the last reading lacks: their UUIDs
        self._modes: _Modes = ({}, {})  # the modes of confidential computing as last taken
        self._read: Machine | None = None  # the last reading that could be published, before _modes are applied
        self._lock = threading.Lock()
        self._pages: Sequence[Page] | None = None
        self._taints: Mapping[DeviceName, Sequence[Taint]] | None = None if rules.watched else {}
        self._withheld: dict[str, frozenset[str] | None] = dict.fromkeys(
            sorted(rules.laid_out)
        )  # by the key of the taint
        self._pool: PublishedPool | None = None  # replaced whole, never changed

    def pool(self) -> PublishedPool:
        """Return the pool of the last reading. Raises DevicesUnknownError before the first, saying what is missing."""
        pool = self._pool
        if pool is None:
            raise DevicesUnknownError(f"the GPUs of this node are not known yet: {self._waiting_for()}")
        return pool

    def first_indices(self) -> Mapping[int, str]:
        """Return which UUID each NVML index had first: the index keeps meaning that GPU even if others move up because
        one is lost. From any thread.
        """
        return self._first_indices

    def take(self, machine: Machine) -> None:
        """Use another reading from now on. Raises TopologyError for a device that cannot be named."""
        read, self._modes = machine, self._modes_now()
        machine = with_modes_of_guests(machine, *self._modes)
        self._first_indices = {**{gpu.index: gpu.uuid for gpu in machine.gpus}, **self._first_indices}
        divided = divided_gpus(self._rules.gpu_list, machine, self._first_indices)
        taken = taken_by_others(machine, divided, self._own_places() if divided.uuids else ())
        self._use(machine, divided, taken, self._gone(machine) if divided.uuids else {})
        self._read = read

    def _use(
        self,
        machine: Machine,
        divided: DividedGpus,
        taken: Mapping[str, Mapping[str, int]],
        gone: Mapping[DeviceName, str],
    ) -> None:
        self._machine, self._taken = machine if divided.uuids else None, taken
        machine = as_published(machine, divided)
        gpu_list = self._rules.gpu_list
        shared = shared_gpus(gpu_list, machine, self._first_indices)
        whole = gpu_list.listed(GpuRole.WHOLE, machine, self._first_indices)
        unclear = {**whole.problems, **shared.problems, **divided.problems}
        for problem in unclear.values():
            log.error("a setting is unclear", setting="gpus", reason=problem)
        handed = machine.handed_on_demand()
        roles = GpuRoles(shared=shared.uuids, divided=divided.uuids, handed=frozenset(handed))
        pages = allocatable(machine, driver=self._driver, tainted=self._rules.tainted, roles=roles)
        pool = node_pool(machine, self._driver, self._name, pages, divided, gone)
        kept, skipped = preparable_pages(pages, pool)
        for device, reason in skipped.items():
            log.warning("device not published", device=device, reason=reason)
        self._metrics.devices.skipped.set(len(skipped))
        parents = {gpu_device_name(mig.parent_uuid) for mig in machine.mig_devices}  # handed out in parts
        parents |= set(map(gpu_device_name, divided.uuids - divided.switched))
        parents |= _of_vgpu_manager(machine)
        self._troubles.update(
            "devices",
            (
                *(
                    trouble(TroubleKind.DEVICE_SKIPPED, f"device {device} is not published: {reason}", device)
                    for device, reason in skipped.items()
                    if device not in parents
                ),
                *(
                    trouble(TroubleKind.GPUS_UNCLEAR, f"setting `gpus` of this node: {problem}", subject)
                    for subject, problem in unclear.items()
                ),
                *map(passthrough_trouble, divided_by_mig(machine)),
                *(() if self._guest_modes is not None else mode_troubles(machine, self._modes[0], self._driver)),
                *(trouble(TroubleKind.MIG_TAKEN, _TAKEN.format(gpu=uuid), gpu_device_name(uuid)) for uuid in taken),
            ),
        )
        with self._lock:
            self._pool = pool  # before it is published, so that an allocation a moment later can be prepared
            self._pages = (*kept, *counter_pages(machine, roles, taken))
            self._publish_tainted()

    def look_again(self) -> None:
        """Take the last reading once more if other MIG devices in it count as ours by now, or are missing, or other
        modes of confidential computing are known. Called for each unchanged reading, by the thread that calls take().
        A place counts as ours for some time after it was touched: without another look, a foreign device that was first
        read during that time would never be reported.
        """
        if self._read is not None and self._modes != self._modes_now():
            self.take(self._read)
            return
        machine = self._machine
        if machine is None:
            return
        divided = divided_gpus(self._rules.gpu_list, machine, self._first_indices)
        taken, gone = taken_by_others(machine, divided, self._own_places()), self._gone(machine)
        if taken != self._taken or gone != self.pool().vanished:
            self._use(machine, divided, taken, gone)

    def _gone(self, machine: Machine) -> Mapping[DeviceName, str]:
        """Return which MIG devices of claims are gone; call this once for each reading.

        One reading is no proof: during a rolling update, the other instance may have made the device after the reading
        began. The next reading settles it. A device already known to be gone, even from before a restart, needs no
        second one.
        """
        made = self._made_devices()
        missing, before = vanished(machine, made), self._missing
        self._missing = missing
        return {p: uuid for p, uuid in missing.items() if made[p].known_gone or before.get(p) == uuid}

    def take_taints(self, taints: Mapping[DeviceName, Sequence[Taint]]) -> None:
        """Publish these taints from now on, each device's after the one that all devices have."""
        with self._lock:
            self._taints = taints
            self._publish_tainted()

    def withhold(self, key: str, gpus: Collection[str]) -> None:
        """Taint the devices of these GPUs, as gpu_of() names them, from now on, so that no new claim gets them: their
        layout is about to change. `key` is the key of the taint. EVERY_GPU means all devices of the node, whose mode of
        confidential computing is about to change. From any thread.
        """
        with self._lock:
            if self._withheld.get(key) != frozenset(gpus):
                self._withheld[key] = frozenset(gpus)
                self._publish_tainted()

    def _modes_now(self) -> _Modes:
        return labels_of_modes(self._labels(), self._driver), dict(self._guest_modes() if self._guest_modes else {})

    def _publish_tainted(self) -> None:
        taints = self._taints
        withheld = {gpu: key for key, gpus in self._withheld.items() for gpu in gpus or ()}
        if self._pages is None or taints is None or None in self._withheld.values():
            return
        places = {} if self._pool is None else self._pool.mig_places
        self._publish(
            tuple(
                tuple(self._with_own_taint(_tainted(each, taints, places), withheld) for each in page)
                for page in self._pages
            )
        )

    def _with_own_taint(self, device: Device | CounterSet, withheld: Mapping[str, str]) -> Device | CounterSet:
        if isinstance(device, CounterSet):
            return device
        key = withheld.get(gpu_of(device) or "")
        if EVERY_GPU in withheld:
            taint = Taint(key=withheld[EVERY_GPU], value=CHANGING, effect="NoSchedule")
        elif key is not None:
            taint = Taint(key=key, value=PENDING, effect="NoSchedule")
        elif self._pool is not None and device.name in self._pool.vanished:
            taint = Taint(key=f"{self._driver}/{GONE}", value="gone", effect="NoSchedule")
        elif self._pool is not None and is_foreign(device, self._pool):
            taint = Taint(key=f"{self._driver}/{FABRIC_PARTITION}", value=FOREIGN, effect="NoSchedule")
        else:
            return device
        kept = device.taints[: limits.DEVICE_TAINTS - 1]  # the worst health taints come first
        return msgspec.structs.replace(device, taints=[*kept, taint])


def labels_of_modes(labels: Mapping[str, str], driver: str) -> Mapping[str, str]:
    """Return those labels of the Node that are about modes of confidential computing."""
    keys = (MODE_STATE_LABEL, cc_mode_label(driver))
    return {key: labels[key] for key in keys if key in labels}


def gpu_of(device: Device) -> str | None:
    """Return the UUID of the GPU that a device is or is a part of; for a vGPU, the PCI address of its GPU."""
    names = ("parentUUID", "uuid", "parentPCIBusID")
    found = next((device.attributes[name] for name in names if name in device.attributes), None)
    return None if found is None else found.string


def _of_vgpu_manager(machine: Machine) -> set[DeviceName]:
    """Return the devices of the GPUs whose vGPUs go to virtual machines."""
    uuids = {gpu.uuid for gpu in machine.gpus if gpu.pci_bus_id in machine.vgpu_parents}
    migs = {mig.device_name for mig in machine.mig_devices if mig.parent_uuid in uuids}
    return migs.union(map(gpu_device_name, uuids))


def _tainted(
    device: Device | CounterSet,
    taints: Mapping[DeviceName, Sequence[Taint]],
    places: Mapping[DeviceName, MigPlace],
) -> Device | CounterSet:
    """Return a device with its taints; an empty place for a MIG device has those of its GPU."""
    if isinstance(device, CounterSet):
        return device
    name = DeviceName(device.name)
    if name not in taints and name in places:
        name = gpu_device_name(places[name].parent_uuid)
    more = taints.get(name, ())
    if name not in taints and pci_bus_id_in(name) is not None and device.consumes_counters:
        # A broken GPU goes to no new claim. A claim that has it is not evicted: the driver lost it on the way to VFIO.
        told = taints.get(DeviceName(device.consumes_counters[0].counter_set), ())
        more = [taint for taint in told if taint.effect == "NoSchedule"]
    return msgspec.structs.replace(device, taints=[*device.taints, *more]) if more else device
