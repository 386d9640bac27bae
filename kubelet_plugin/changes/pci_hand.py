"""Moves functions of the PCI bus from one driver of the kernel to another, one write at a time.

Whoever uses it decides which functions move and when; here is what holds for each of them. A function that a process
has open is not touched: the kernel would wait for that process, for ever. What a write did is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dracaena.api.errors import TemporaryError
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.discovery.vm.passthrough import PciFunction
from dracaena.kubelet_plugin.ports import EffectPendingError, OpeningProcess, PciDrivers

Holders = Callable[[str, int | None], Sequence[OpeningProcess]]
"""Returns who has a function open, by address and, if a VFIO driver has it, IOMMU group (adapters.kernel.pci_holders).
"""


class FunctionOpenError(TemporaryError):
    """A process has a function open. Nothing was done to it."""


def _go_on() -> None:
    """Nobody has given up."""


class PciHand:
    """From any thread; keeps no state. Methods raise TemporaryError, and WriteHangsError while a write waits in the
    kernel. `gpu` is the address of the GPU on whose behalf a function moves: its lock is held by each write.
    """

    def __init__(self, drivers: PciDrivers, holders: Holders) -> None:
        self._drivers = drivers
        self._holders = holders

    def find(self, address: str) -> PciFunction | None:
        """Return a function as it is now, None if it is not on the bus."""
        parsed = PciAddress.parse(address)
        return None if parsed is None else self._drivers.read().functions.get(parsed)

    def get(self, address: str) -> PciFunction:
        """Return a function as it is now."""
        found = self.find(address)
        if found is None:
            raise TemporaryError(f"{address} has gone from the PCI bus")
        return found

    def processes(self, address: str, group: int | None = None) -> Sequence[OpeningProcess]:
        """Return who has a function open."""
        return self._holders(address, group)

    def refuse_while_open(self, function: PciFunction) -> None:
        """Raise FunctionOpenError while a process has a function open, naming it."""
        who = self._who(str(function.address), function.iommu_group if function.has_vfio_driver else None)
        if who:
            stays = f"with driver {function.driver}" if function.driver else "as it is"
            waits = f"the kernel would wait for them without end, so it stays {stays}"
            raise FunctionOpenError(f"{function.address} is open in {who}: {waits}; end them")

    def refuse_while_writing(self, gpu: str, what: str, functions: Iterable[str]) -> None:
        """Raise EffectPendingError while an earlier write may still take effect, naming who has the functions open."""
        if not self._drivers.is_writing(gpu):
            return
        try:
            who = ", ".join(filter(None, (self._who(address, None) for address in functions)))
        except TemporaryError as error:
            who = str(error)
        raise EffectPendingError(
            f"{what} waits for an earlier write to /sys, which the kernel answers once everything that has the GPU at "
            f"{gpu} open is closed: {who or 'no process is seen to have it open'}"
        )

    def unbind(self, gpu: str, function: PciFunction, target: str, go_on: Callable[[], None] = _go_on) -> None:
        """Take a function from its driver, if it has one, so that no other than `target` can get it. `go_on` is called
        before each write, and raises what ends the work.
        """
        self.refuse_while_open(function)
        address = str(function.address)
        go_on()
        self._write(gpu, f"bus/pci/devices/{address}/driver_override", f"{target}\n")
        if function.driver is not None:
            go_on()
            self._write(gpu, f"bus/pci/drivers/{function.driver}/unbind", f"{address}\n")

    def bind(self, gpu: str, address: str, driver: str) -> None:
        """Give a function that has no driver to one, and see that it has it."""
        self._write(gpu, f"bus/pci/drivers/{driver}/bind", f"{address}\n")
        self.expect(address, driver)

    def release(self, gpu: str, function: PciFunction) -> None:
        """Take a function from its driver, whichever may get it next."""
        self.refuse_while_open(function)
        self._write(gpu, f"bus/pci/drivers/{function.driver}/unbind", f"{function.address}\n")

    def expect(self, address: str, driver: str | None) -> None:
        """Raise unless a function has this driver, or none."""
        found = self.get(address)
        if found.driver != driver:
            raise TemporaryError(f"{found} was to get {f'driver {driver}' if driver else 'no driver'}, but has not")

    def set_override(self, gpu: str, address: str, override: str) -> None:
        """Let only one driver get a function; empty: any."""
        if (self._drivers.override(address) or "") != override:
            self._write(gpu, f"bus/pci/devices/{address}/driver_override", f"{override}\n")

    def _who(self, address: str, group: int | None) -> str:
        return ", ".join(map(str, self._holders(address, group)))

    def _write(self, gpu: str, path: str, text: str) -> None:
        try:
            self._drivers.write(gpu, path, text)
        except OSError as error:
            raise TemporaryError(
                f"the kernel refuses {text.strip() or 'nothing'} in /sys/{path}: {error.strerror}; look at `dmesg`"
            ) from error
