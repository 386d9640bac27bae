"""The record of a MIG device that was made for a claim, kept outside the claim: it proves that the device is ours.

The claim's journal has the same, but is lost if its checkpoint breaks. On disk: one JSON object. No MIG device outlives
a boot, so a record of another one is meaningless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from dracaena.kubelet_plugin.prepare.journals.document import decode_record, encode_record

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class MigDeviceRecord:
    """The record of one place."""

    boot_id: str
    claim_uid: str
    gpu: str
    """UUID of the GPU."""
    profile: str
    start: int
    size: int
    gpu_instance: int
    uuid: str
    """UUID of the MIG device. The driver gives each one another, also at the same place and with the same number."""


msgspec.json.Decoder(MigDeviceRecord)  # inspected by the thread that imports: see kube.client


def encode_mig_device(record: MigDeviceRecord) -> bytes:
    """Return the file's content."""
    return encode_record(record, VERSION)


def decode_mig_device(data: bytes) -> MigDeviceRecord:
    """Read a file. Raises ValueError if it is not one of ours."""
    return decode_record(data, MigDeviceRecord, VERSION)
