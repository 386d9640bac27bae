"""Records which GPUs are bound to VFIO for claims, one file per GPU, besides the checkpoints of these claims."""

from __future__ import annotations

import structlog

from dracaena.api.passthrough import passthrough_device_name, pci_bus_id_in
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock
from dracaena.kubelet_plugin.prepare.journals.bound_gpu import BoundGpu, decode_bound_gpu, encode_bound_gpu

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

    def functions(self, address: str) -> str:
        """Return which drivers the functions of a GPU had before it was bound in this boot (vfio_binding.FUNCTIONS);
        empty if it was not bound, or has been given back.
        """
        data = self._files.read(_name(address))
        if data is None:
            return ""
        try:
            found = decode_bound_gpu(data)
        except ValueError as error:
            log.error("record of a GPU that was bound to VFIO is broken: it counts as never bound", error=str(error))
            return ""
        return found.functions if found.boot_id == self._boot_id else ""

    def unclaimed(self) -> str | None:
        """Return a sentence that names the GPUs bound in this boot and not given back yet, None if there are none. For
        callers that know that no claim has any.
        """
        found = [address for address in self.addresses() if self.functions(address)]
        if not found:
            return None
        return f"VFIO has {', '.join(found)} for a claim that has ended, and gives it back when nothing has it open"

    def note(self, address: str, functions: str) -> None:
        """Record that a GPU is about to be bound, with the drivers that its functions have."""
        with self._lock.hold():
            self._files.write_if_changed(_name(address), encode_bound_gpu(BoundGpu(self._boot_id, functions)))

    def forget(self, address: str) -> None:
        """Record that a GPU has been given back."""
        with self._lock.hold():
            self._files.remove(_name(address))


def _name(address: str) -> str:
    return f"{passthrough_device_name(address)}{_SUFFIX}"
