"""Records which GPUs are bound to VFIO for claims, one file per GPU, besides the checkpoints of these claims."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from dracaena.api.passthrough import passthrough_device_name, pci_bus_id_in
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock
from dracaena.kubelet_plugin.prepare.journals.bound_gpu import (
    BoundGpu,
    HostFunction,
    decode_bound_gpu,
    encode_bound_gpu,
    functions_text,
    host_functions,
)

_SUFFIX = ".json"

log = structlog.get_logger()


class BoundGpus:
    """From any thread; the records of one GPU belong to whoever holds its lock. All methods raise DracaenaError if a
    file cannot be read or written.
    """

    def __init__(self, files: DocumentStore, lock: NodeLock, boot_id: str) -> None:
        """`lock` is the lock of the calls, which guards all writes on this node: note() and forget() take it."""
        self._files = files
        self._lock = lock
        self._boot_id = boot_id

    def addresses(self) -> tuple[str, ...]:
        """Return the PCI addresses of all GPUs with a record, from whatever boot; sorted."""
        names = (name.removesuffix(_SUFFIX) for name in self._files.names(_SUFFIX))
        return tuple(sorted(filter(None, map(pci_bus_id_in, names))))

    def functions(self, address: str) -> tuple[HostFunction, ...]:
        """Return what is to be given back of a GPU that was bound in this boot, the GPU first; empty if it was not
        bound, or has been given back, or if its record is broken.
        """
        found = self._of_this_boot(address)
        return () if found is None else host_functions(found.functions)

    def is_persistent(self, address: str) -> bool:
        """Whether persistence mode of a GPU is to be switched on again, by its record."""
        found = self._of_this_boot(address)
        return found is not None and found.persistent

    def problem(self, address: str) -> str | None:
        """Return what is wrong with the record of a GPU, as a sentence that names the file, None if nothing is."""
        try:
            self._read(address)
        except ValueError as error:
            return f"its record {_name(address)} is broken ({error})"
        return None

    def unclaimed(self) -> str | None:
        """Return a sentence that names the GPUs bound in this boot and not given back yet, None if there are none. For
        callers that know that no claim has any.
        """
        found = [each for each in self.addresses() if any(f.address == each for f in self.functions(each))]
        if not found:
            return None
        return f"VFIO has {', '.join(found)} for a claim that has ended, and gives it back when nothing has it open"

    def note(self, address: str, functions: Iterable[HostFunction], *, persistent: bool = False) -> None:
        """Record what is to be given back of a GPU, before any of it is bound."""
        with self._lock.hold():
            record = BoundGpu(self._boot_id, functions_text(functions), persistent)
            self._files.write_if_changed(_name(address), encode_bound_gpu(record))

    def forget(self, address: str) -> None:
        """Record that all of a GPU has been given back."""
        with self._lock.hold():
            self._files.remove(_name(address))

    def _of_this_boot(self, address: str) -> BoundGpu | None:
        try:
            found = self._read(address)
        except ValueError:
            return None
        return found if found is not None and found.boot_id == self._boot_id else None

    def _read(self, address: str) -> BoundGpu | None:
        """Return a record, None if there is none. Raises ValueError if it is broken."""
        data = self._files.read(_name(address))
        return None if data is None else decode_bound_gpu(data)


def _name(address: str) -> str:
    return f"{passthrough_device_name(address)}{_SUFFIX}"
