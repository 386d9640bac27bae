"""The record of a GPU that is bound to VFIO for a claim, kept outside the claim: which drivers its functions had.

The claim's journal has the same, but is lost if its checkpoint breaks. On disk: one JSON object. After a boot every
function is back with its default driver, so a record of another boot is meaningless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from dracaena.kubelet_plugin.prepare.journals.document import JournalDocument, read_document

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class BoundGpu:
    """The record of one GPU."""

    boot_id: str
    functions: str
    """As in the claim's journal (vfio_binding.FUNCTIONS)."""


class _BoundGpuDocument(JournalDocument):
    functions: str


def encode_bound_gpu(gpu: BoundGpu) -> bytes:
    """Return the file's content."""
    return msgspec.json.encode(_BoundGpuDocument(VERSION, gpu.boot_id, gpu.functions)) + b"\n"


def decode_bound_gpu(data: bytes) -> BoundGpu:
    """Read a file. Raises ValueError if it is not one of ours."""
    document = read_document(data, _BoundGpuDocument, VERSION)
    return BoundGpu(document.boot_id, document.functions)
