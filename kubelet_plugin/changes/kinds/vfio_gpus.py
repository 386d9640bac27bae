"""GPUs that are bound to a VFIO driver when a claim gets them, and back to the drivers that they had when it ends.

All functions of a GPU's IOMMU group go together, or none does. The GPUs of a claim leave the GPU driver within one
release of it, and are bound once all of them have.

The GPU is given back first. If another function of its group, such as its sound card, cannot be given back, that holds
neither the claim nor the GPU: it stays noted, and the sweep tries again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.passthrough import pci_bus_id_in
from dracaena.host.facts.pci import PciAddress
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.changes.change import (
    Act,
    End,
    How,
    Note,
    Thing,
    ThingKind,
    ThingPlan,
    Unreadable,
    Wants,
    no_time_left,
    one_by_one,
)
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.changes.pci_hand import PciHand
from dracaena.kubelet_plugin.discovery.vm.passthrough import (
    VFIO_DRIVER,
    PciBus,
    PciFunction,
    functions_of_gpu,
    why_not_on_demand,
)
from dracaena.kubelet_plugin.discovery.vm.vfio_drivers import VfioDriver
from dracaena.kubelet_plugin.ports import EffectPendingError, PciDrivers, PersistenceModes, WriteHangsError
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import IOMMU_NODE
from dracaena.kubelet_plugin.prepare.effects import VFIO_BIND

_OVERRIDE: Final = re.compile(r"[^\s=]*")
"""What a driver_override may be; no driver has another name."""

DAEMON: Final = "nvidia-persistenced"[:15]
"""As the kernel has the name of a process (TASK_COMM_LEN)."""

log = structlog.get_logger()


WithoutGpuDriver = Callable[[str, Callable[[], None]], None]
"""Runs the work that the text names while no process of ours has the GPU driver open, which the kernel would wait for.
Raises what the work raises, and TemporaryError if the driver is not released (gpu_driver.lending); after
EffectPendingError the work may still be done, in another thread."""


@dataclass(frozen=True, slots=True)
class HostFunction:
    """What one function of the PCI bus had before VFIO got it."""

    address: str
    driver: str
    """Empty: none."""
    override: str = ""
    """The only driver that it could get (driver_override). Empty: any."""


@dataclass(frozen=True, slots=True)
class NotedVfioGpu:
    """What is noted of one GPU."""

    functions: tuple[HostFunction, ...]
    """What is to be given back, the GPU first. Without the GPU: it was given back already."""
    persistent: bool = False
    """Whether persistence mode is to be switched on again."""


@dataclass(frozen=True, slots=True)
class SeenVfioGpu:
    """What is seen of one GPU; the last four only if somebody wants it bound."""

    address: str
    bus: PciBus
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Of each function of its group."""
    targets: Mapping[str, VfioDriver] = field(default_factory=dict)
    """The VFIO driver that each of these needs."""
    has_iommufd: bool = False
    persistent: bool = False
    """Whether nvidia-persistenced has the GPU open, and can be asked to close it."""

    @property
    def gpu(self) -> PciFunction | None:
        """The GPU itself, None if it is not on the bus."""
        address = PciAddress.parse(self.address)
        return None if address is None else self.bus.functions.get(address)

    @property
    def functions(self) -> tuple[PciFunction, ...]:
        """All functions of its group but bridges, the GPU first."""
        return () if self.gpu is None else functions_of_gpu(self.gpu, self.bus)


@dataclass(frozen=True, slots=True)
class ToVfio:
    """Bind functions to their VFIO drivers."""

    targets: Mapping[str, str]
    """Driver of each function, the GPU first."""
    persistent: bool
    """Have nvidia-persistenced close the GPU first."""


@dataclass(frozen=True, slots=True)
class BackToHost:
    """Give back what is noted."""

    noted: NotedVfioGpu


Step = ToVfio | BackToHost


class VfioGpus(ThingKind[NotedVfioGpu, Step]):
    """For VFIO_BIND; a thing has the name of the GPU's device. From any thread; keeps no state.

    Nothing is supposed where a note is lost, since a claim may also have a GPU that an admin has bound.
    """

    name = VFIO_BIND
    rank = 20
    noted = NotedVfioGpu

    def __init__(
        self,
        drivers: PciDrivers,
        hand: PciHand,
        without_gpu_driver: WithoutGpuDriver,
        make_whole: Callable[[str], None] = lambda _address: None,
        changed: Callable[[], None] = lambda: None,
        persistence: PersistenceModes | None = None,
    ) -> None:
        """`make_whole` takes a GPU, by its address, out of MIG mode or raises DracaenaError. `changed` is called when
        GPUs have moved. Without `persistence`, a GPU that nvidia-persistenced has is refused as one of any other
        process is.
        """
        self._drivers = drivers
        self._hand = hand
        self._without_gpu_driver = without_gpu_driver
        self._make_whole = make_whole
        self._changed = changed
        self._persistence = persistence

    def look(self, thing: Thing, wants: Wants) -> SeenVfioGpu:
        """See ThingKind."""
        gpu, bus = _address(thing), self._drivers.read()
        seen = SeenVfioGpu(gpu, bus)
        addresses = [str(each.address) for each in seen.functions]
        self._hand.refuse_while_writing(gpu, str(thing), addresses or [gpu])
        if not wants or seen.gpu is None:
            return seen
        return SeenVfioGpu(
            gpu,
            bus,
            {address: self._drivers.override(address) or "" for address in addresses},
            {address: self._drivers.vfio_driver(address) for address in addresses},
            self._drivers.has_iommufd(),
            self._is_persistent(seen.gpu),
        )

    def _is_persistent(self, gpu: PciFunction) -> bool:
        if self._persistence is None or gpu.driver is None or gpu.has_vfio_driver:
            return False
        return any(each.command == DAEMON for each in self._hand.processes(str(gpu.address)))

    def plan(
        self, wants: Wants, seen: SeenVfioGpu, note: Note[NotedVfioGpu] | Unreadable | None
    ) -> ThingPlan[NotedVfioGpu, Step]:
        """See ThingKind. A GPU that an admin has bound to VFIO stays bound, and nothing is noted of it. Raises
        TemporaryError for a GPU that cannot be bound.
        """
        if not wants:
            return _back(seen, note)
        known = {each.address: each for each in note.noted.functions} if isinstance(note, Note) else {}
        functions = _bindable(seen)
        if seen.address not in known:
            if _are_in_vfio(functions):
                return ThingPlan()
            if any(each.get("iommufd") for asked in wants.values() for each in asked) and not seen.has_iommufd:
                raise TemporaryError(f"/dev/iommu is missing, so {seen.address} is not bound: {IOMMU_NODE.remedy}")
        targets = {str(each.address): _target(seen, each) for each in functions}
        found = {str(each.address): _as_found(seen, each) for each in functions if str(each.address) not in known}
        rest = {address: each for address, each in known.items() if address not in targets}
        noted = NotedVfioGpu(
            (*(known.get(address) or found[address] for address in targets), *rest.values()),
            seen.persistent or (isinstance(note, Note) and note.noted.persistent),
        )
        is_done = all(each.has_vfio_driver for each in functions)
        return ThingPlan(noted, None if is_done else ToVfio(targets, seen.persistent))

    def do(self, acts: Sequence[Act[Step]], left_s: Callable[[], float]) -> Sequence[End[NotedVfioGpu]]:
        """See ThingKind. While a process has a GPU open, it stays where it is. A function that is gone, or whose driver
        is not loaded, counts as given back: the driver takes it once it is loaded.
        """
        moves = {_address(act.thing): act.step for act in acts if isinstance(act.step, ToVfio)}
        if moves:
            return [self._move(moves, ", ".join(str(act.thing) for act in acts), left_s)] * len(acts)
        ends: Sequence[End[NotedVfioGpu]] = one_by_one(acts, left_s, self._give_back)
        if any(end.how is How.DONE and _has_gpu(act) for act, end in zip(acts, ends, strict=True)):
            self._changed()
        return ends

    def trouble(self, thing: Thing, problem: DracaenaError) -> Trouble | None:
        """See ThingKind."""
        gpu = _address(thing)
        text = f"the GPU at {gpu} is not yet as it was before a claim had it: {problem}"
        return trouble(TroubleKind.NOT_GIVEN_BACK, text, gpu)

    def _move(self, moves: Mapping[str, ToVfio], what: str, left_s: Callable[[], float]) -> End[NotedVfioGpu]:
        """Bind all of these, or say how far that got."""
        try:
            if left_s() <= 0:
                raise no_time_left(what)
            for gpu in moves:
                self._leave_mig_mode(gpu)
        except DracaenaError as error:
            return End(How.REFUSED, error)
        try:
            for gpu, step in moves.items():
                if step.persistent and self._persistence is not None:
                    self._persistence.set(gpu, on=False)
            self._unbind(moves)
            for gpu, step in moves.items():
                for address, target in step.targets.items():
                    if not self._hand.get(address).has_vfio_driver:
                        self._hand.bind(gpu, address, target)
        except WriteHangsError as error:
            return End(How.UNANSWERED, EffectPendingError(f"{what} is not ready yet: {error}"))
        except DracaenaError as error:
            return End(How.UNANSWERED, error)
        self._changed()
        return End()

    def _leave_mig_mode(self, gpu: str) -> None:
        now = self._hand.get(gpu)
        if now.driver is not None and not now.has_vfio_driver:
            self._make_whole(gpu)

    def _unbind(self, moves: Mapping[str, ToVfio]) -> None:
        """Unbind all functions from their drivers; the GPUs first, all of them within one release of the GPU driver."""
        found = [
            (gpu, self._hand.get(address), target)
            for gpu, step in moves.items()
            for address, target in step.targets.items()
        ]
        found = [each for each in found if not each[1].has_vfio_driver]
        lent = [each for each in found if each[1].is_gpu and each[1].driver is not None]
        given_up = threading.Event()

        def unbind_gpus() -> None:
            for gpu, now, target in lent:
                self._hand.unbind(gpu, now, target, partial(_refuse_if_given_up, now, given_up))

        if lent:
            names = ", ".join(f"{now.address} from {now.driver}" for _, now, _ in lent)
            try:
                self._without_gpu_driver(f"unbinding {names}", unbind_gpus)
            except EffectPendingError:
                # The claim, and its note with it, may end before the late work runs: nobody would give the GPU back.
                # A write in progress is covered: its lock shows it to everybody.
                given_up.set()
                raise
        for gpu, now, target in found:
            if (gpu, now, target) not in lent:
                self._hand.unbind(gpu, now, target)
        for _, now, _ in found:
            self._hand.expect(str(now.address), None)

    def _give_back(self, act: Act[Step]) -> End[NotedVfioGpu]:
        """Give functions and persistence back. Nothing is written if a process has any of them open."""
        assert isinstance(act.step, BackToHost)
        gpu, noted = _address(act.thing), act.step.noted
        left, problems = [], []
        try:
            self._refuse_while_open(gpu, noted)
            for former in noted.functions:
                try:
                    self._give_back_function(gpu, former)
                except TemporaryError as error:
                    if former.address == gpu:
                        raise
                    left.append(former)
                    problems.append(str(error))
        except DracaenaError as error:
            return End(How.UNANSWERED, error)
        persistence = self._persistence_problem(gpu) if noted.persistent else ""
        if not left and not persistence:
            return End()
        problem = TemporaryError("; ".join(filter(None, [*problems, persistence])))
        return End(How.DONE, problem, NotedVfioGpu(tuple(left), persistent=bool(persistence)))

    def _refuse_while_open(self, gpu: str, noted: NotedVfioGpu) -> None:
        function = self._hand.find(gpu)
        if function is None or not function.has_vfio_driver:
            return
        for former in noted.functions:
            now = self._hand.find(former.address)
            if now is not None and now.has_vfio_driver:
                self._hand.refuse_while_open(now)

    def _give_back_function(self, gpu: str, former: HostFunction) -> None:
        address, driver = former.address, former.driver
        now = self._hand.find(address)
        if now is None or VFIO_DRIVER.fullmatch(driver) is not None:
            return
        if now.driver != (driver or None):
            if now.driver is not None and not now.has_vfio_driver:
                log.warning("a function has another driver than it was given", function=str(now), had=driver)
                return
            # The kernel binds no driver but the overriding one, whatever it had bound before that was written.
            self._hand.set_override(gpu, address, driver if driver and former.override else former.override)
            self._rebind(gpu, now, driver)
        self._hand.set_override(gpu, address, former.override)

    def _rebind(self, gpu: str, now: PciFunction, driver: str) -> None:
        """Bind a function to a driver instead of that of VFIO, or to none."""
        if now.has_vfio_driver:
            self._hand.release(gpu, now)
        if driver and self._drivers.is_loaded(driver):
            self._hand.bind(gpu, str(now.address), driver)
        elif driver:
            log.warning("the driver that a function had is not loaded", function=str(now.address), driver=driver)

    def _persistence_problem(self, gpu: str) -> str:
        """Switch persistence mode on again; return why that cannot be, empty if it is done. A GPU without a driver gets
        it from the daemon, which is started after the driver is loaded.
        """
        found = self._hand.find(gpu)
        if self._persistence is None or found is None or found.driver is None:
            return ""
        try:
            self._persistence.set(gpu, on=True)
        except DracaenaError as error:
            return (
                f"persistence mode of the GPU at {gpu} is off, and cannot be switched on again: {error}; on the node: "
                "`systemctl restart nvidia-persistenced`"
            )
        return ""


def not_given_back(ledger: Ledger) -> str | None:
    """Return a sentence that names the GPUs bound in this boot and not given back yet, None if there are none. For
    callers that know that no claim has any. Raises DracaenaError if the ledger cannot be read.
    """
    found = []
    for thing in ledger.things(VFIO_BIND):
        note, gpu = ledger.read(thing, NotedVfioGpu), _address(thing)
        if isinstance(note, Note) and any(each.address == gpu for each in note.noted.functions):
            found.append(gpu)
    if not found:
        return None
    return f"VFIO has {', '.join(found)} for a claim that has ended, and gives it back when nothing has it open"


def _back(seen: SeenVfioGpu, note: Note[NotedVfioGpu] | Unreadable | None) -> ThingPlan[NotedVfioGpu, Step]:
    if isinstance(note, Note):
        return ThingPlan(act=BackToHost(note.noted))
    if note is None or seen.gpu is None or not seen.gpu.has_vfio_driver:
        return ThingPlan()
    return ThingPlan(
        stays=f"{note.problem}, so it is not known whether a claim or an admin had it bound: `driverctl unset-override "
        f"{seen.address}` gives it back; to leave it to VFIO, remove that file from the plugin's folder `ledger`"
    )


def _bindable(seen: SeenVfioGpu) -> tuple[PciFunction, ...]:
    """Return the functions that are bound with a GPU. Raises TemporaryError if it cannot be bound."""
    if seen.gpu is None:
        raise TemporaryError(f"there is no GPU at {seen.address} on the PCI bus")
    problem = why_not_on_demand(seen.gpu, seen.bus)
    if problem is not None:
        raise TemporaryError(f"the GPU at {seen.address} cannot be bound to VFIO: {problem}")
    return seen.functions


def _are_in_vfio(functions: Sequence[PciFunction]) -> bool:
    """Whether a VFIO driver has a GPU, and no other driver has a function of its group."""
    return functions[0].has_vfio_driver and all(each.driver is None or each.has_vfio_driver for each in functions)


def _target(seen: SeenVfioGpu, function: PciFunction) -> str:
    """Return the VFIO driver that a function has or needs."""
    address, target = function.address, seen.targets[str(function.address)]
    if function.driver is not None and function.has_vfio_driver:
        return function.driver
    if target.name is None:
        raise TemporaryError(
            f"{address} needs the driver of kernel module {target.module}, which is not loaded: run `modprobe "
            f"{target.module}` as root on the node, and have it loaded at boot (/etc/modules-load.d)"
        )
    return target.name


def _as_found(seen: SeenVfioGpu, function: PciFunction) -> HostFunction:
    address = str(function.address)
    override = seen.overrides[address]
    if _OVERRIDE.fullmatch(override) is None:
        raise TemporaryError(
            f"driver_override of {address} is {override[:80]!r}, expected the name of a driver: correct it"
        )
    return HostFunction(address, function.driver or "", override)


def _has_gpu(act: Act[Step]) -> bool:
    """Whether a GPU itself is given back, and not only what was left of its group."""
    return isinstance(act.step, BackToHost) and any(
        each.address == _address(act.thing) for each in act.step.noted.functions
    )


def _refuse_if_given_up(function: PciFunction, given_up: threading.Event) -> None:
    if given_up.is_set():
        raise TemporaryError(
            f"{function.address} is not unbound from driver {function.driver}: its caller has given up"
        )


def _address(thing: Thing) -> str:
    """Return the PCI address of a thing's GPU. A file of another name is nobody's."""
    return pci_bus_id_in(thing.name) or thing.name
