"""The effect of a share that MPS carves out of its GPU: the request to the supervisor, and what its answer means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dracaena.api.errors import BadInputError
from dracaena.api.mps import MpsShareRequest, MpsShareStatus
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.device_kinds.device_kind import ContainerEdits
from dracaena.kubelet_plugin.device_kinds.shared_device import MEMORY_STEP_BYTES
from dracaena.kubelet_plugin.prepare.cdi.spec import Mount
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, Effect, Scalar
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice

_ENVIRONMENT: Final = "env:"
_MOUNT: Final = "mount:"
_READ_ONLY_MOUNT: Final = "read-only-mount:"
"""Prefixes of the names in an outcome, which is flat: `env:NAME` → value, `mount:PATH` and `read-only-mount:PATH` → the
folder of the host that containers see at PATH."""

_MOUNT_OPTIONS: Final = ("nosuid", "nodev", "noexec", "bind")


@dataclass(frozen=True, slots=True)
class MpsOffer:
    """Whether this node's supervisor can serve shares."""

    problem: str | None
    """Why it cannot, and who must act, as a sentence ending; None: it can."""
    runs: bool
    """Whether it runs at this moment. One that is being restarted will serve soon."""


NO_MPS: Final = MpsOffer("no MPS supervisor serves this node (chart value mps.enabled)", runs=False)


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
    parameters: dict[str, Scalar] = {"gpu": device.uuid, "claim_uid": claim, **limits}
    return Effect(MPS_SHARE, device.physical_gpu, device.device, device.share_id, parameters)


def mps_request(effect: Effect, boot_id: str) -> MpsShareRequest:
    """Return the request to the supervisor."""
    given = effect.parameters
    percentage, memory = given.get("thread_percentage"), given.get("pinned_memory_mib")
    return MpsShareRequest(
        boot_id=boot_id,
        gpu=str(given["gpu"]),
        claim_uid=str(given["claim_uid"]),
        share_id=effect.share_id or "",
        thread_percentage=None if percentage is None else int(percentage),
        pinned_memory_mib=None if memory is None else int(memory),
    )


def mps_outcome(status: MpsShareStatus, root: str) -> Mapping[str, Scalar]:
    """Return what the containers of a ready share need.

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
    return {
        **{_ENVIRONMENT + name: value for name, value in sorted(status.environment.items())},
        **{
            (_READ_ONLY_MOUNT if mount.read_only else _MOUNT) + mount.container_path: mount.host_path
            for mount in status.mounts
        },
    }


def _is_below(folder: str, path: str) -> bool:
    below = path.removeprefix(f"{folder}/")
    return below != path and all(step not in ("", ".", "..") for step in below.split("/"))


def mps_edits(effects: Sequence[Effect]) -> ContainerEdits:
    """Return what containers get of effects that are made; nothing of others and of other kinds."""
    outcomes = [effect.outcome or {} for effect in effects if effect.kind == MPS_SHARE]
    said = [(name, str(value)) for outcome in outcomes for name, value in outcome.items()]
    return ContainerEdits(
        tuple(f"{name.removeprefix(_ENVIRONMENT)}={value}" for name, value in said if name.startswith(_ENVIRONMENT)),
        tuple(
            Mount(value, name.removeprefix(prefix), (access, *_MOUNT_OPTIONS))
            for name, value in said
            for prefix, access in ((_MOUNT, "rw"), (_READ_ONLY_MOUNT, "ro"))
            if name.startswith(prefix)
        ),
    )
