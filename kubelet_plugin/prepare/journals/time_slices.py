"""The record of a GPU whose time slices were set for shares, kept outside their claims: the interval from before.

The claims' journals have the same, but are lost if their checkpoints break. On disk: one JSON object. The driver starts
with its default interval, so a record of another boot is meaningless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.kubelet_plugin.prepare.journals.document import JournalDocument, read_document

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TimeSliceRecord:
    """The record of one GPU."""

    boot_id: str
    gpu: str
    """Its UUID."""
    before: TimeSliceInterval
    """The interval from before the first share."""
    ours: frozenset[TimeSliceInterval]
    """Intervals that were set, or are about to be set, for shares since."""


class _TimeSliceDocument(JournalDocument):
    gpu: str
    before: TimeSliceInterval
    ours: list[TimeSliceInterval]


def encode_time_slices(record: TimeSliceRecord) -> bytes:
    """Return the file's content."""
    document = _TimeSliceDocument(
        VERSION, record.boot_id, record.gpu, record.before, sorted(record.ours, key=lambda each: each.value)
    )
    return msgspec.json.encode(document) + b"\n"


def decode_time_slices(data: bytes) -> TimeSliceRecord:
    """Read a file. Raises ValueError if it is not one of ours."""
    document = read_document(data, _TimeSliceDocument, VERSION)
    return TimeSliceRecord(document.boot_id, document.gpu, document.before, frozenset(document.ours))
