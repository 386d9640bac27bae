"""A prepared claim → the files that tell its containers which devices they got (KEP-5304, device metadata).

Each request of a claim has one document on the host and one CDI spec, which mounts the document into the containers
that use the request. Its path in the container follows from the pod's own spec, so programs find it without asking an
API. The formats are those of the Kubernetes plugin library (releases 1.36 and 1.37).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from dracaena.api.names import POD_CLAIM_NAME_ANNOTATION, ClaimUid, DeviceName
from dracaena.api.resource_objects import DeviceAttribute, ResourceClaim
from dracaena.kubelet_plugin.prepare.cdi.spec import Device, Edits, Mount, Spec, encode_spec
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimMetadata, ClaimReference, PreparedClaim

VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""The document is written once in each, newest first: readers skip what they do not know. 1.36 knows the second."""

CONTAINER_FOLDER = "/var/run/kubernetes.io/dra-device-attributes"

GENERATION = 1
"""The generation of a document that never changes: what it says of a GPU is known when the claim is prepared."""

DOCUMENT = "metadata.json"

Attributes = Mapping[DeviceName, Mapping[str, DeviceAttribute]]


def claim_metadata(claim: ResourceClaim) -> ClaimMetadata:
    """Return what the files of a claim need besides its devices."""
    return ClaimMetadata(claim.metadata.annotations.get(POD_CLAIM_NAME_ANNOTATION) or None)


def requests(prepared: PreparedClaim) -> tuple[str, ...]:
    """Return the requests that have devices, each once, without the names of sub-requests."""
    return tuple(dict.fromkeys(device.request_name for device in prepared.devices))


def document_name(claim: ClaimReference, request: str) -> str:
    """Return the path of a document below the host's folder of metadata."""
    return f"{claim.namespace}_{claim.name}/{request}/{DOCUMENT}"


def spec_name(driver: str, uid: ClaimUid, request: str) -> str:
    """Return the file name of the CDI spec that mounts a document."""
    return f"{spec_prefix(driver)}{uid}_{request}.json"


def spec_prefix(driver: str) -> str:
    """Return the prefix of the names of all such specs."""
    return f"{driver}_metadata_"


def claim_of_spec_name(driver: str, name: str) -> ClaimUid | None:
    """Return the claim whose spec has this file name, None if it is no such name. Neither part has underscores."""
    prefix = spec_prefix(driver)
    uid, underscore, request = name.removeprefix(prefix).removesuffix(".json").partition("_")
    return ClaimUid(uid) if uid and underscore and name == f"{prefix}{uid}_{request}.json" else None


def document(prepared: PreparedClaim, request: str, driver: str, attributes: Attributes) -> bytes:
    """Return what the containers read: one JSON object per version, in sequence.

    `attributes` are those of the ResourceSlice; a device that is not in the slice has none.
    """
    assert prepared.metadata is not None
    devices = [device for device in prepared.devices if device.request_name == request]
    body = {
        "metadata": {
            "name": prepared.claim.name,
            "namespace": prepared.claim.namespace,
            "uid": prepared.claim.uid,
            "generation": GENERATION,
        },
        **({"podClaimName": prepared.metadata.pod_claim_name} if prepared.metadata.pod_claim_name else {}),
        "requests": [
            {
                "name": devices[0].request,
                "devices": [
                    {
                        "driver": driver,
                        "pool": device.pool,
                        "name": device.device,
                        **({"attributes": found} if (found := attributes.get(device.device)) else {}),
                    }
                    for device in devices
                ],
            }
        ],
    }
    return b"".join(_pretty({"kind": "DeviceMetadata", "apiVersion": version, **body}) for version in VERSIONS)


def claim_of_document(data: bytes) -> ClaimUid | None:
    """Return the claim that a document is about, None if it is not one of ours."""
    try:
        newest, _ = json.JSONDecoder().raw_decode(data.decode())
        return ClaimUid(newest["metadata"]["uid"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def spec(prepared: PreparedClaim, request: str, driver: str, folder: str) -> bytes:
    """Return the CDI spec that mounts a document; `folder` is the host's folder of metadata.

    Raises ValueError if the result breaks a rule of CDI, which is a bug of ours.
    """
    mount = Mount(
        f"{folder}/{document_name(prepared.claim, request)}", container_path(prepared, request, driver), ("ro", "bind")
    )
    device = Device(_cdi_device(prepared.claim.uid, request), Edits(mounts=(mount,)))
    return encode_spec(Spec(f"{driver}/metadata", (device,)), f"the metadata of claim {prepared.claim}")


def container_path(prepared: PreparedClaim, request: str, driver: str) -> str:
    """Return where containers find a document: by the claim's name if the pod names it, or by the pod's own name for a
    claim that was generated for it.
    """
    assert prepared.metadata is not None
    pod_claim_name = prepared.metadata.pod_claim_name
    kind, name = (
        ("resourceclaimtemplates", pod_claim_name) if pod_claim_name else ("resourceclaims", prepared.claim.name)
    )
    return f"{CONTAINER_FOLDER}/{kind}/{name}/{request}/{driver}-{DOCUMENT}"


def cdi_ids(prepared: PreparedClaim, driver: str) -> tuple[str | None, ...]:
    """Return for each device of a claim the CDI id of its document: the first device of each request has it."""
    if prepared.metadata is None:
        return (None,) * len(prepared.devices)
    names = [device.request_name for device in prepared.devices]
    return tuple(
        f"{driver}/metadata={_cdi_device(prepared.claim.uid, name)}" if names.index(name) == position else None
        for position, name in enumerate(names)
    )


def _cdi_device(uid: ClaimUid, request: str) -> str:
    return f"{uid}_{request}"


def _pretty(found: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
