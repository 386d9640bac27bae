"""Binds GPUs to a VFIO driver when claims get them, and back to the drivers that they had.

The journal records the driver and the override of each function of a GPU's IOMMU group before the first write, and the
progress of the binding after each phase. Each write is preceded by a reading of the current state, so every step is
idempotent. Either all functions of the group are bound or none: the caller (ClaimEffects) undoes what cannot be
finished. The same is also recorded outside the claim (BoundGpus): if the checkpoint with the journal breaks, it is
restored from there.

The GPU is given back first. If another function of its group, such as its sound card, cannot be given back, that holds
neither the claim nor the GPU: it stays recorded, and the sweeper tries again (UnclaimedGpus).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.discovery.vm.passthrough import (
    VFIO_DRIVER,
    PciFunction,
    functions_of_gpu,
    why_not_on_demand,
)
from dracaena.kubelet_plugin.effects.bound_gpus import BoundGpus
from dracaena.kubelet_plugin.ports import (
    EffectPendingError,
    OpeningProcess,
    PciDrivers,
    PersistenceModes,
    WriteHangsError,
)
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import IOMMU_NODE
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar
from dracaena.kubelet_plugin.prepare.journals.bound_gpu import HostFunction, functions_text, host_functions

FUNCTIONS: Final = "functions"
"""In the journal: what the bound functions had before, as functions_text(), the GPU first."""
PERSISTENT: Final = "persistent"
"""In the journal: nvidia-persistenced had the GPU, and is asked to have it again."""
STATE: Final = "state"
UNBINDING: Final = "unbinding"
UNBOUND: Final = "unbound"
BOUND: Final = "bound"

_OVERRIDE: Final = re.compile(r"[^\s=]*")
"""What a driver_override may be to be journaled; no driver has another name."""

DAEMON: Final = "nvidia-persistenced"[:15]
"""As the kernel has the name of a process (TASK_COMM_LEN)."""

Note = Callable[[Mapping[str, Scalar]], None]

log = structlog.get_logger()


WithoutGpuDriver = Callable[[str, Callable[[], None]], None]
"""Runs the work that the text names while no process of ours has the GPU driver open, which the kernel would wait for.
Raises what the work raises, and TemporaryError if the driver is not released (gpu_driver.lending); after
EffectPendingError the work may still be done, in another thread."""


@dataclass(frozen=True, slots=True)
class _Moving:
    """A GPU on its way to VFIO."""

    effect: Effect
    gpu: str
    """Its PCI address."""
    functions: tuple[PciFunction, ...]
    noted: Mapping[str, Scalar]
    """What is journaled, without the progress."""


class VfioBinding:
    """Implements NotingEffectMeans and JoinedEffectMeans for VFIO_BIND. From any thread; keeps no state."""

    def __init__(
        self,
        drivers: PciDrivers,
        holders: Callable[[str, int | None], Sequence[OpeningProcess]],
        without_gpu_driver: WithoutGpuDriver,
        bound: BoundGpus,
        make_whole: Callable[[str], None] = lambda _address: None,
        changed: Callable[[], None] = lambda: None,
        persistence: PersistenceModes | None = None,
    ) -> None:
        """`holders` returns who has a GPU open, by address and IOMMU group (adapters.kernel.pci_holders). `make_whole`
        takes a GPU out of MIG mode or raises TemporaryError. `changed` is called when a GPU has moved. Without
        `persistence`, a GPU that nvidia-persistenced has is refused as one of any other process is.
        """
        self._drivers = drivers
        self._holders = holders
        self._without_gpu_driver = without_gpu_driver
        self._bound = bound
        self._make_whole = make_whole
        self._changed = changed
        self._persistence = persistence

    def apply_noting(self, effect: Effect, _others: Sequence[Effect], note: Note) -> Mapping[str, Scalar]:
        """See NotingEffectMeans and apply_joined()."""
        return self.apply_joined([effect], lambda _effect, outcome: note(outcome))[0]

    def apply_joined(
        self, effects: Sequence[Effect], note: Callable[[Effect, Mapping[str, Scalar]], None]
    ) -> Sequence[Mapping[str, Scalar]]:
        """See JoinedEffectMeans: the GPU driver is released once for all GPUs. A GPU that an admin has bound to VFIO
        stays bound, and nothing is journaled for it. A GPU that was bound for a claim whose journal is lost is
        journaled as it was recorded then.

        Raises TemporaryError while a process has one open or its group holds more than one GPU, EffectPendingError
        while a write waits in the kernel.
        """
        begun = [self._begin(effect, note) for effect in effects]
        moving = [each for each in begun if each is not None]
        try:
            self._unbind_for_vfio(moving)
            for each in moving:
                note(each.effect, {**each.noted, STATE: UNBOUND})
            for each in moving:
                for function in each.functions:
                    self._bind_to_vfio(each.gpu, function)
        except WriteHangsError as error:
            raise EffectPendingError(f"{', '.join(map(str, effects))} is not ready yet: {error}") from error
        if moving:
            self._changed()
        return [{} if each is None else {**each.noted, STATE: BOUND} for each in begun]

    def undo(self, effect: Effect, _others: Sequence[Effect]) -> None:
        """See NotingEffectMeans and undo_joined()."""
        self.undo_joined([effect], lambda _effect: None)

    def undo_joined(self, effects: Sequence[Effect], undone: Callable[[Effect], None]) -> None:
        """See JoinedEffectMeans. A function that is gone, or whose driver is not loaded, counts as given back: the
        driver takes it once it is loaded. Raises TemporaryError while a process has a GPU open, naming it; a GPU that
        cannot be given back keeps no other from it.
        """
        moved, problems = False, []
        try:
            for effect in effects:
                try:
                    moved |= self._undo(effect)
                except DracaenaError as error:
                    problems.append(error)
                    continue
                undone(effect)
        finally:
            if moved:
                self._changed()
        for problem in problems[1:]:
            log.warning("a GPU is not given back yet", error=str(problem))
        if problems:
            raise problems[0]

    def _undo(self, effect: Effect) -> bool:
        """Give one GPU back; return whether there was anything to give back."""
        gpu, outcome = _gpu_of(effect), effect.outcome or {}
        noted = _noted(outcome) if FUNCTIONS in outcome else self._bound.functions(gpu)
        if not noted:
            return False
        self._refuse_while_writing(gpu, str(effect), noted)
        left = self._give_back_all(
            gpu, noted, persistent=bool(outcome.get(PERSISTENT)) or self._bound.is_persistent(gpu)
        )
        if left:
            log.warning("a GPU is given back without all of its group", gpu=gpu, left=left)
        return True

    def give_back(self, gpu: str) -> str:
        """Give back what VFIO has of a GPU, by its address, that no claim has. Return why some of it stays with VFIO,
        as a text for admins; empty if nothing does. Raises like undo().
        """
        problem = self._bound.problem(gpu)
        if problem is not None and self._is_in_vfio(gpu):
            return (
                f"{problem}, so it is not known whether a claim or an admin had it bound: `driverctl unset-override "
                f"{gpu}` gives it back; to leave it to VFIO, remove that file from the plugin's folder"
            )
        noted = self._bound.functions(gpu)
        self._refuse_while_writing(gpu, f"giving back the GPU at {gpu}", noted)
        left = self._give_back_all(gpu, noted, persistent=self._bound.is_persistent(gpu))
        if any(each.address == gpu for each in noted):
            self._changed()
        return left

    def _give_back_all(self, gpu: str, noted: Sequence[HostFunction], *, persistent: bool) -> str:
        """Give functions and persistence back, and record what cannot be; return why. Raises if the GPU cannot be, and
        before anything is written if a process has any of them open.
        """
        if self._is_in_vfio(gpu):
            for former in noted:
                now = self._found(former.address)
                if now is not None and now.has_vfio_driver:
                    self._refuse_while_open(now)
        left, problems = [], []
        for former in noted:
            try:
                self._give_back(gpu, former)
            except TemporaryError as error:
                if former.address == gpu:
                    raise
                left.append(former)
                problems.append(str(error))
        persistence = self._persistence_problem(gpu) if persistent else ""
        if left or persistence:
            self._bound.note(gpu, left, persistent=bool(persistence))
        else:
            self._bound.forget(gpu)
        return "; ".join(filter(None, [*problems, persistence]))

    def _persistence_problem(self, gpu: str) -> str:
        """Switch persistence mode on again; return why that cannot be, empty if it is done. A GPU without a driver gets
        it from the daemon, which is started after the driver is loaded.
        """
        found = self._found(gpu)
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

    def _end_persistence(
        self, effect: Effect, functions: Sequence[PciFunction], noted: dict[str, Scalar], note: Note
    ) -> None:
        """Have nvidia-persistenced close the GPU, if it has it open, and journal that before."""
        gpu = _gpu_of(effect)
        if self._persistence is None or functions[0].driver is None or functions[0].has_vfio_driver:
            return
        if any(each.command == DAEMON for each in self._holders(gpu, None)):
            if not noted.get(PERSISTENT):
                noted[PERSISTENT] = True
                note({**noted, STATE: UNBINDING})
            self._bound.note(gpu, _noted(noted), persistent=True)
            self._persistence.set(gpu, on=False)

    def _begin(self, effect: Effect, note: Callable[[Effect, Mapping[str, Scalar]], None]) -> _Moving | None:
        """Journal the drivers of a GPU's functions before anything is written; None if an admin bound the GPU."""
        gpu, noted = _gpu_of(effect), dict(effect.outcome or {})
        self._refuse_while_writing(gpu, str(effect), _noted(noted))
        functions = self._functions(gpu)
        if FUNCTIONS not in noted:
            kept = {each.address: each for each in self._bound.functions(gpu)}
            if gpu not in kept and _are_in_vfio(gpu, functions):
                return None
            found = (kept.get(str(each.address)) or self._as_found(each) for each in functions)
            noted = {FUNCTIONS: functions_text(found)}
            if effect.parameters.get("iommufd") and not self._drivers.has_iommufd():
                raise TemporaryError(f"/dev/iommu is missing, so {effect.device} is not bound: {IOMMU_NODE.remedy}")
            self._check_targets(functions)
            self._make_whole(gpu)
            note(effect, {**noted, STATE: UNBINDING})
        self._bound.note(gpu, _noted(noted), persistent=bool(noted.get(PERSISTENT)) or self._bound.is_persistent(gpu))
        self._end_persistence(effect, functions, noted, partial(note, effect))
        return _Moving(effect, gpu, functions, noted)

    def _as_found(self, function: PciFunction) -> HostFunction:
        address = str(function.address)
        override = self._drivers.override(address) or ""
        if _OVERRIDE.fullmatch(override) is None:
            raise TemporaryError(
                f"driver_override of {address} is {override[:80]!r}, expected the name of a driver: correct it"
            )
        return HostFunction(address, function.driver or "", override)

    def _functions(self, gpu: str) -> tuple[PciFunction, ...]:
        """Return the functions of a GPU's group as they are now, the GPU itself first."""
        bus = self._drivers.read()
        address = PciAddress.parse(gpu)
        function = None if address is None else bus.functions.get(address)
        if function is None:
            raise TemporaryError(f"there is no GPU at {gpu} on the PCI bus")
        problem = why_not_on_demand(function, bus)
        if problem is not None:
            raise TemporaryError(f"the GPU at {gpu} cannot be bound to VFIO: {problem}")
        return functions_of_gpu(function, bus)

    def _check_targets(self, functions: Sequence[PciFunction]) -> None:
        for each in functions:
            self._target(str(each.address))

    def _target(self, address: str) -> str:
        """Return the VFIO driver that a function needs."""
        target = self._drivers.vfio_driver(address)
        if target.name is None:
            raise TemporaryError(
                f"{address} needs the driver of kernel module {target.module}, which is not loaded: run `modprobe "
                f"{target.module}` as root on the node, and have it loaded at boot (/etc/modules-load.d)"
            )
        return target.name

    def _unbind_for_vfio(self, moving: Sequence[_Moving]) -> None:
        """Unbind all functions from their drivers; the GPUs first, all of them within one release of the GPU driver."""
        found = [(each.gpu, self._now(function.address)) for each in moving for function in each.functions]
        found = [(gpu, now) for gpu, now in found if not now.has_vfio_driver]
        lent = [(gpu, now) for gpu, now in found if now.is_gpu and now.driver is not None]
        given_up = threading.Event()

        def unbind_gpus() -> None:
            for gpu, now in lent:
                self._unbind(gpu, now, given_up)

        if lent:
            names = ", ".join(f"{now.address} from {now.driver}" for _, now in lent)
            try:
                self._without_gpu_driver(f"unbinding {names}", unbind_gpus)
            except EffectPendingError:
                # The claim, and its journal with it, may end before the late work runs: nobody would give the GPU back.
                # A write in progress is covered: its lock shows it to everybody.
                given_up.set()
                raise
        for gpu, now in found:
            if (gpu, now) not in lent:
                self._unbind(gpu, now, given_up)
        for _, now in found:
            self._expect(now.address, None)

    def _unbind(self, gpu: str, now: PciFunction, given_up: threading.Event) -> None:
        address = str(now.address)

        def write(path: str, text: str) -> None:
            if given_up.is_set():
                raise TemporaryError(f"{address} is not unbound from driver {now.driver}: its caller has given up")
            self._write(gpu, path, text)

        self._refuse_while_open(now)
        target = self._target(address)
        write(f"bus/pci/devices/{address}/driver_override", f"{target}\n")
        if now.driver is not None:
            write(f"bus/pci/drivers/{now.driver}/unbind", f"{address}\n")

    def _bind_to_vfio(self, gpu: str, function: PciFunction) -> None:
        now = self._now(function.address)
        if now.has_vfio_driver:
            return
        address = str(function.address)
        target = self._target(address)
        self._write(gpu, f"bus/pci/drivers/{target}/bind", f"{address}\n")
        self._expect(function.address, target)

    def _give_back(self, gpu: str, former: HostFunction) -> None:
        address, driver = former.address, former.driver
        now = self._found(address)
        if now is None or VFIO_DRIVER.fullmatch(driver) is not None:
            return
        if now.driver != (driver or None):
            if now.driver is not None and not now.has_vfio_driver:
                log.warning("a function has another driver than it was given", function=str(now), had=driver)
                return
            # The kernel binds no driver but the overriding one, whatever it had bound before that was written.
            self._set_override(gpu, address, driver if driver and former.override else former.override)
            self._rebind(gpu, now, driver)
        self._set_override(gpu, address, former.override)

    def _rebind(self, gpu: str, now: PciFunction, driver: str) -> None:
        """Bind a function to a driver instead of that of VFIO, or to none."""
        address = str(now.address)
        if now.has_vfio_driver:
            self._refuse_while_open(now)
            self._write(gpu, f"bus/pci/drivers/{now.driver}/unbind", f"{address}\n")
        if driver and self._drivers.is_loaded(driver):
            self._write(gpu, f"bus/pci/drivers/{driver}/bind", f"{address}\n")
            self._expect(now.address, driver)
        elif driver:
            log.warning("the driver that a function had is not loaded", function=address, driver=driver)

    def _set_override(self, gpu: str, address: str, override: str) -> None:
        if (self._drivers.override(address) or "") != override:
            self._write(gpu, f"bus/pci/devices/{address}/driver_override", f"{override}\n")

    def _is_in_vfio(self, address: str) -> bool:
        found = self._found(address)
        return found is not None and found.has_vfio_driver

    def _found(self, address: str) -> PciFunction | None:
        parsed = PciAddress.parse(address)
        return None if parsed is None else self._drivers.read().functions.get(parsed)

    def _now(self, address: PciAddress) -> PciFunction:
        found = self._drivers.read().functions.get(address)
        if found is None:
            raise TemporaryError(f"{address} has gone from the PCI bus")
        return found

    def _expect(self, address: PciAddress, driver: str | None) -> None:
        found = self._now(address)
        if found.driver != driver:
            raise TemporaryError(f"{found} was to get {f'driver {driver}' if driver else 'no driver'}, but has not")

    def _refuse_while_writing(self, gpu: str, what: str, noted: Sequence[HostFunction]) -> None:
        if self._drivers.is_writing(gpu):
            functions = [each.address for each in noted] or [gpu]
            try:
                who = ", ".join(found for found in (self._who(address, None) for address in functions) if found)
            except TemporaryError as error:
                who = str(error)
            raise EffectPendingError(
                f"{what} waits for an earlier write to /sys, which the kernel answers once everything that has the "
                f"GPU at {gpu} open is closed: {who or 'no process is seen to have it open'}"
            )

    def _refuse_while_open(self, function: PciFunction) -> None:
        who = self._who(str(function.address), function.iommu_group if function.has_vfio_driver else None)
        if who:
            raise TemporaryError(
                f"{function.address} is open in {who}: the kernel would wait for them without end, so it stays with "
                f"driver {function.driver}; end them"
            )

    def _who(self, address: str, group: int | None) -> str:
        return ", ".join(map(str, self._holders(address, group)))

    def _write(self, gpu: str, path: str, text: str) -> None:
        try:
            self._drivers.write(gpu, path, text)
        except OSError as error:
            raise TemporaryError(
                f"the kernel refuses {text.strip() or 'nothing'} in /sys/{path}: {error.strerror}; look at `dmesg`"
            ) from error


def _gpu_of(effect: Effect) -> str:
    return str(effect.parameters["address"])


def _are_in_vfio(gpu: str, functions: Sequence[PciFunction]) -> bool:
    """Whether a VFIO driver has a GPU, and no other driver has a function of its group."""
    return all(each.driver is None or each.has_vfio_driver for each in functions) and any(
        each.has_vfio_driver and str(each.address) == gpu for each in functions
    )


def _noted(outcome: Mapping[str, Scalar]) -> tuple[HostFunction, ...]:
    return host_functions(str(outcome.get(FUNCTIONS, "")))
