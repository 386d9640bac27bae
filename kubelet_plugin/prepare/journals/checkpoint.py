"""The checkpoint of one claim: what unprepare needs when the claim is gone, and what a restart needs to resume.

On disk: one JSON object `{"version", "checksum", "checkpoint"}`. The checksum is over the bytes of the value of
`checkpoint` exactly as they are in the file, so that no reader has to write JSON the way the writer did. Fields
that this version does not know are kept when it writes a checkpoint again: a newer plugin may need them back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from dracaena.api.names import ClaimUid, DeviceName, GpuUuid, PodUid, PoolName
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimMetadata, ClaimReference, PreparedClaim, PreparedDevice

PLAIN_VERSION = 1
"""Raised only if an older plugin would misread a newer file; a new field alone does not raise it.

So the previous release reads what this one writes: it keeps the fields that it does not know.
"""
SHARING_VERSION = 2
"""For checkpoints with effects or with shares of a known size. A release that does not know these would forget the
claim and leave its effects behind, or give one share of a GPU the size of another. With this version it takes the file
for broken, says so and keeps a copy."""

SUFFIX = ".json"


DeviceKey = tuple[str, str, str | None]
"""Request, device and shareID identify a device of a claim."""


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
    planned: bool = True
    """False: it was reconstructed from what was left, and must still be planned from the claim, or its effects made."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the document that this version does not know."""
    unknown_of_devices: Mapping[DeviceKey, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of its devices that this version does not know."""

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


class _ClaimDocument(msgspec.Struct):
    namespace: str
    name: str
    uid: str


class _DeviceDocument(msgspec.Struct, omit_defaults=True):
    request: str
    pool: str
    device: str
    uuid: str
    minor: int
    admin_access: bool = False
    share_id: str | None = None
    access_minors: tuple[int, ...] = ()
    parent_uuid: str | None = None
    index: int | None = None
    gpu_instance_id: int | None = None
    pci_bus_id: str | None = None
    start: int | None = None
    size: int | None = None
    memory_bytes: int | None = None
    cores: int = 0
    iommu_group: int | None = None
    resource: str = ""
    iommufd: bool = False
    vgpu_type_id: str = ""


class _EffectDocument(msgspec.Struct, omit_defaults=True):
    kind: str
    gpu: str
    device: str
    share_id: str | None = None
    parameters: dict[str, Scalar] = {}
    outcome: dict[str, Scalar] | None = None


class _MetadataDocument(msgspec.Struct):
    pod_claim_name: str | None = None


class _CheckpointDocument(msgspec.Struct, omit_defaults=True):
    state: State
    boot_id: str
    claim: _ClaimDocument
    devices: list[_DeviceDocument]
    consumers: list[str]
    metadata: _MetadataDocument | None = None
    former: list[_DeviceDocument] = []
    answered: bool = False
    aside: str | None = None
    planned: bool = True
    effects: list[_EffectDocument] = []
    in_guest: bool = False


def file_name(uid: ClaimUid) -> str:
    """Return the file name of a claim's checkpoint."""
    return f"{uid}{SUFFIX}"


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the file's content. Equal checkpoints make equal bytes."""
    body = msgspec.json.encode(_document(checkpoint))
    version = SHARING_VERSION if _has_effects_or_shares(checkpoint.prepared) else PLAIN_VERSION
    return msgspec.json.encode(_Envelope(version, _checksum(body), msgspec.Raw(body))) + b"\n"


def _has_effects_or_shares(prepared: PreparedClaim) -> bool:
    devices = (*prepared.devices, *prepared.former)
    return bool(prepared.effects) or any(d.memory_bytes is not None or d.cores > 0 for d in devices)


def decode_checkpoint(uid: ClaimUid, data: bytes) -> Checkpoint | Broken:
    """Read the file of a claim; a broken one is an answer, not an exception."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Broken(uid, f"is not a checkpoint: {error}")
    if envelope.version not in (PLAIN_VERSION, SHARING_VERSION):
        return Broken(uid, f"has version {envelope.version}, expected {PLAIN_VERSION} or {SHARING_VERSION}")
    seen = _checksum(bytes(envelope.checkpoint))
    if seen != envelope.checksum:
        return Broken(uid, f"has checksum {seen}, expected {envelope.checksum}")
    try:
        body = msgspec.json.decode(envelope.checkpoint, type=_CheckpointDocument)
        document = msgspec.json.decode(envelope.checkpoint)
        checkpoint = _checkpoint(body, document)
        checkpoint.prepared.check()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return Broken(uid, f"does not decode: {error}")
    if checkpoint.prepared.claim.uid != uid:
        return Broken(uid, f"is of claim UID {checkpoint.prepared.claim.uid}")
    return checkpoint


def _checksum(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()


def _document(checkpoint: Checkpoint) -> dict[str, Any]:
    prepared = checkpoint.prepared
    body = _CheckpointDocument(
        state=checkpoint.state,
        boot_id=checkpoint.boot_id,
        claim=_ClaimDocument(prepared.claim.namespace, prepared.claim.name, prepared.claim.uid),
        devices=[_device_document(d) for d in prepared.devices],
        consumers=list(prepared.consumers),
        metadata=None if prepared.metadata is None else _MetadataDocument(prepared.metadata.pod_claim_name),
        former=[_device_document(d) for d in prepared.former],
        answered=checkpoint.answered,
        aside=checkpoint.aside,
        planned=checkpoint.planned,
        effects=[_effect_document(effect) for effect in prepared.effects],
        in_guest=prepared.in_guest,
    )
    document: dict[str, Any] = msgspec.to_builtins(body)
    document["devices"] = [
        {**device, **checkpoint.unknown_of_devices.get(_key(device), {})} for device in document["devices"]
    ]
    return {**document, **checkpoint.unknown}


def _checkpoint(body: _CheckpointDocument, document: Mapping[str, Any]) -> Checkpoint:
    unknown_of_devices = {_key(raw): rest for raw in document["devices"] if (rest := _rest(raw, _DeviceDocument))}
    return Checkpoint(
        state=body.state,
        boot_id=body.boot_id,
        prepared=PreparedClaim(
            claim=ClaimReference(body.claim.namespace, body.claim.name, ClaimUid(body.claim.uid)),
            devices=tuple(_device(d) for d in body.devices),
            former=tuple(_device(d) for d in body.former),
            consumers=tuple(PodUid(uid) for uid in body.consumers),
            metadata=None if body.metadata is None else ClaimMetadata(body.metadata.pod_claim_name),
            effects=tuple(_effect(effect) for effect in body.effects),
            in_guest=body.in_guest,
        ),
        answered=body.answered,
        aside=body.aside,
        planned=body.planned,
        unknown=_rest(document, _CheckpointDocument),
        unknown_of_devices=unknown_of_devices,
    )


def _key(device: Mapping[str, Any]) -> DeviceKey:
    return (device["request"], device["device"], device.get("share_id"))


def _device_document(device: PreparedDevice) -> _DeviceDocument:
    return _DeviceDocument(**{name: getattr(device, name) for name in _DeviceDocument.__struct_fields__})


def _device(document: _DeviceDocument) -> PreparedDevice:
    return PreparedDevice(
        request=document.request,
        pool=PoolName(document.pool),
        device=DeviceName(document.device),
        uuid=GpuUuid(document.uuid),
        minor=document.minor,
        admin_access=document.admin_access,
        share_id=document.share_id,
        access_minors=document.access_minors,
        parent_uuid=None if document.parent_uuid is None else GpuUuid(document.parent_uuid),
        index=document.index,
        gpu_instance_id=document.gpu_instance_id,
        pci_bus_id=document.pci_bus_id,
        start=document.start,
        size=document.size,
        memory_bytes=document.memory_bytes,
        cores=document.cores,
        iommu_group=document.iommu_group,
        resource=document.resource,
        iommufd=document.iommufd,
        vgpu_type_id=document.vgpu_type_id,
    )


def _effect_document(effect: Effect) -> _EffectDocument:
    outcome = None if effect.outcome is None else dict(effect.outcome)
    return _EffectDocument(effect.kind, effect.gpu, effect.device, effect.share_id, dict(effect.parameters), outcome)


def _effect(document: _EffectDocument) -> Effect:
    return Effect(
        kind=document.kind,
        gpu=DeviceName(document.gpu),
        device=DeviceName(document.device),
        share_id=document.share_id,
        parameters=document.parameters,
        outcome=document.outcome,
    )


def _rest(document: Mapping[str, Any], known: type[msgspec.Struct]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in known.__struct_fields__}
