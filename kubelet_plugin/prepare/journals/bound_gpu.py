"""The record of a GPU that is bound to VFIO for a claim, kept outside the claim: what its functions had on the host.

The claim's journal has the same, but is lost if its checkpoint breaks. On disk: one JSON object. After a boot every
function is back with its default driver, so a record of another boot is meaningless.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from dracaena.kubelet_plugin.prepare.journals.document import JournalDocument, read_document

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class HostFunction:
    """What one function of the PCI bus had before VFIO got it."""

    address: str
    driver: str
    """Empty: none."""
    override: str = ""
    """The only driver that it could get (driver_override). Empty: any."""

    def __str__(self) -> str:
        """Return it as journals have it: `0000:18:00.1=snd_hda_intel`, with another `=` before an override."""
        return f"{self.address}={self.driver}{self.override and f'={self.override}'}"


def functions_text(functions: Iterable[HostFunction]) -> str:
    """Return functions as journals have them, in order."""
    return " ".join(map(str, functions))


def host_functions(text: str) -> tuple[HostFunction, ...]:
    """Read functions_text()."""
    words = (word.split("=") for word in text.split())
    return tuple(HostFunction(address, *rest[:2]) for address, *rest in words if rest)


@dataclass(frozen=True, slots=True)
class BoundGpu:
    """The record of one GPU."""

    boot_id: str
    functions: str
    """What is to be given back: functions_text(), the GPU first. Without the GPU: it was given back already."""
    persistent: bool = False
    """Whether persistence mode is to be switched on again."""


class _BoundGpuDocument(JournalDocument, omit_defaults=True):
    functions: str
    persistent: bool = False


def encode_bound_gpu(gpu: BoundGpu) -> bytes:
    """Return the file's content."""
    return msgspec.json.encode(_BoundGpuDocument(VERSION, gpu.boot_id, gpu.functions, gpu.persistent)) + b"\n"


def decode_bound_gpu(data: bytes) -> BoundGpu:
    """Read a file. Raises ValueError if it is not one of ours."""
    document = read_document(data, _BoundGpuDocument, VERSION)
    return BoundGpu(document.boot_id, document.functions, document.persistent)
