"""The effect of a share that MPS carves out of its GPU: the request to the supervisor, and what its answer means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dracaena.api.errors import BadInputError
from dracaena.api.mps import MpsShareRequest, MpsShareStatus, share_name
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.device_kinds.shared_device import MEMORY_STEP_BYTES
from dracaena.kubelet_plugin.prepare.cdi.spec import NO_EDITS, Edits, Mount
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, Effect, Scalar, part_on_gpu
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice

_MOUNT_OPTIONS: Final = ("nosuid", "nodev", "noexec", "bind")


@dataclass(frozen=True, slots=True)
class MpsOffer:
    """Whether this node's supervisor can serve shares."""

    problem: str | None
    """Why it cannot, and who must act, as a sentence ending; None: it can."""
    runs: bool
    """Whether it runs at this moment. One that is being restarted will serve soon."""


NO_MPS: Final = MpsOffer("no MPS supervisor serves this node (chart value mps.enabled)", runs=False)


@dataclass(frozen=True, slots=True)
class NotedShare:
    """What is noted of a share besides its name and its owner."""

    edits: Edits = NO_EDITS
    """What its containers get, once it is ready: the supervisor may be away when their CDI spec is written again."""


def mps_effect(device: PreparedDevice, claim: ClaimUid, *, memory_is_limited: bool) -> Effect | None:
    """Return the effect that holds a share to its amounts, None if these are smaller than MPS supports.

    Memory is rounded down to MiB: a share never gets more than it consumes.
    """
    limits: dict[str, Scalar] = {}
    if device.cores:
        limits["thread_percentage"] = device.cores
    if memory_is_limited:
        assert device.memory_bytes is not None
        limits["pinned_memory_mib"] = device.memory_bytes // MEMORY_STEP_BYTES
        if limits["pinned_memory_mib"] == 0:
            return None
    parameters: dict[str, Scalar] = {"gpu": device.uuid, "share_id": device.share_id or "", **limits}
    thing = part_on_gpu(device.physical_gpu, share_name(device.uuid, claim, device.share_id or ""))
    return Effect(MPS_SHARE, device.physical_gpu, device.device, device.share_id, parameters, thing=thing)


def mps_request(claim: str, given: Mapping[str, Scalar], boot_id: str) -> MpsShareRequest:
    """Return the request to the supervisor for what a claim wants."""
    percentage, memory = given.get("thread_percentage"), given.get("pinned_memory_mib")
    return MpsShareRequest(
        boot_id=boot_id,
        gpu=str(given["gpu"]),
        claim_uid=claim,
        share_id=str(given["share_id"]),
        thread_percentage=None if percentage is None else int(percentage),
        pinned_memory_mib=None if memory is None else int(memory),
    )


def mps_edits(status: MpsShareStatus, root: str) -> Edits:
    """Return what the containers of a ready share get.

    Raises BadInputError for an answer that our supervisor never gives: containers get only folders below its `root`.
    """
    for mount in status.mounts:
        if not _is_below(root, mount.host_path):
            raise BadInputError(f"it says that containers mount {mount.host_path!r}, expected a folder below {root}")
        if not _is_below("", mount.container_path):
            raise BadInputError(f"it says that containers mount at {mount.container_path!r}, expected an absolute path")
    if not status.mounts:
        raise BadInputError("it says that the share is ready, but names no folder for its containers")
    bad = next((name for name in status.environment if not name or "=" in name), None)
    if bad is not None:
        raise BadInputError(f"it names a variable {bad!r}")
    return Edits(
        tuple([f"{name}={value}" for name, value in sorted(status.environment.items())]),
        mounts=tuple(
            [
                Mount(each.host_path, each.container_path, ("ro" if each.read_only else "rw", *_MOUNT_OPTIONS))
                for each in status.mounts
            ]
        ),
    )


def _is_below(folder: str, path: str) -> bool:
    below = path.removeprefix(f"{folder}/")
    return below != path and all(step not in ("", ".", "..") for step in below.split("/"))


def with_shares(prepared: PreparedClaim, noted: Callable[[Effect], object | None]) -> PreparedClaim:
    """Return a claim with what the containers of its shares get, as `noted` for its effects.

    What an effect asks for says which share it is: of one that was found in the ledger nothing else is known.
    """
    found = {
        (each.gpu, each.parameters["share_id"]): share.edits
        for each in prepared.wants
        if each.kind == MPS_SHARE and isinstance(share := noted(each), NotedShare)
    }
    if not found:
        return prepared
    devices = [
        replace(each, edits=found.get((each.physical_gpu, each.share_id or ""), NO_EDITS)) for each in prepared.devices
    ]
    return replace(prepared, devices=tuple(devices))
