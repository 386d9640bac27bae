"""The checkpoint of one claim: what unprepare needs when the claim is gone, and what a restart needs to resume.

On disk: one JSON object `{"version", "checksum", "checkpoint"}`. The checksum is over the bytes of the value of
`checkpoint` exactly as they are in the file, so that no reader has to write JSON the way the writer did. That value has
the fields of Checkpoint and of what it consists of, except those that equal their defaults: so 8 GPUs fit into a page,
and a crash leaves the old or the new checkpoint even while the disk is full (host.adapters.files.whole_files).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final

import msgspec

from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim

VERSION: Final = 1
"""Raised only if another version of the plugin would misread the file; a new field with a default does not raise it."""

SUFFIX = ".json"


class State(Enum):
    """How far the preparation got."""

    STARTED = "started"
    """The devices are taken; the CDI spec may exist or not. Kubelet got no answer yet, unless it is `answered`."""
    DONE = "done"
    """All files are written; kubelet may have its answer and containers may run."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole document."""

    state: State
    boot_id: str
    """ID of the boot in which it was written: neither minors, CDI specs nor containers outlive it."""
    prepared: PreparedClaim
    answered: bool = False
    """Kubelet may have got its answer before this preparation started: containers may run with these devices."""
    aside: str | None = None
    """Why it is set aside: no container of it can be started, and its devices stay held. None: it is not."""
    provisional: bool = False
    """Its containers may run, and what it says was reconstructed from what was left, or is not all done yet: it must be
    prepared from its claim before anybody is answered from it."""
    had: tuple[Effect, ...] = ()
    """What was done for it before it began to be prepared again, or to end."""

    @property
    def has(self) -> tuple[Effect, ...]:
        """What was done for it, and may be there still: that is ours even if its note is lost."""
        return self.prepared.wants if self.state is State.DONE else self.had

    @property
    def in_use(self) -> bool:
        """Whether containers may have its devices: then only kubelet gives them back."""
        return self.answered or self.state is State.DONE


@dataclass(frozen=True, slots=True)
class Broken:
    """The file is there and cannot be trusted. `problem` says what is wrong, for the log."""

    uid: ClaimUid
    problem: str


class _Envelope(msgspec.Struct):
    version: int
    checksum: str
    checkpoint: msgspec.Raw


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)  # inspected by the thread that imports: see kube.client
_CHECKPOINT: Final = msgspec.json.Decoder(Checkpoint)


def file_name(uid: ClaimUid) -> str:
    """Return the file name of a claim's checkpoint."""
    return f"{uid}{SUFFIX}"


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the file's content. Equal checkpoints make equal bytes."""
    body = msgspec.json.encode(_without_defaults(checkpoint), order="deterministic")
    return msgspec.json.encode(_Envelope(VERSION, _checksum(body), msgspec.Raw(body))) + b"\n"


def decode_checkpoint(uid: ClaimUid, data: bytes) -> Checkpoint | Broken:
    """Read the file of a claim; a broken one is an answer, not an exception."""
    try:
        envelope = _ENVELOPE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Broken(uid, f"is not a checkpoint: {error}")
    if envelope.version != VERSION:
        return Broken(uid, f"has version {envelope.version}, expected {VERSION}")
    seen = _checksum(bytes(envelope.checkpoint))
    if seen != envelope.checksum:
        return Broken(uid, f"has checksum {seen}, expected {envelope.checksum}")
    try:
        checkpoint = _CHECKPOINT.decode(envelope.checkpoint)
        checkpoint.prepared.check()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Broken(uid, f"does not decode: {error}")
    if checkpoint.prepared.claim.uid != uid:
        return Broken(uid, f"is of claim UID {checkpoint.prepared.claim.uid}")
    return checkpoint


def _without_defaults(value: Any) -> Any:
    """Return a value without the fields of dataclasses that equal their defaults, to be written as JSON."""
    kind: Any = type(value)
    if kind is tuple:
        return [_without_defaults(each) for each in value]
    if not is_dataclass(value):
        return value
    given = ((name, getattr(value, name), default) for name, default in _defaults(kind))
    return {name: _without_defaults(field) for name, field, default in given if field != default}


@cache
def _defaults(of: Any) -> Sequence[tuple[str, Any]]:
    """Return the fields of a dataclass, each with its default; one without has a value that nothing equals."""
    return [(f.name, f.default if f.default_factory is MISSING else f.default_factory()) for f in fields(of)]


def _checksum(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()
