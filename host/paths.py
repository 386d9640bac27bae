"""Where the plugin's files and sockets are; all follow from kubelet's folder, the driver's name and the pod's UID."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from dracaena.api.errors import BadInputError

MAX_SOCKET_PATH_BYTES = 107
"""sizeof(sun_path) is 108 with its closing NUL (unix(7))."""

LAST_ASKING = "release-labels"
"""File with the labels, as last seen, that ask us to release the driver; a JSON map. No file: none does."""

_LOCK_NAME = re.compile("instance(-(?P<pod_uid>[A-Za-z0-9-]+))?[.]lock")


@dataclass(frozen=True, slots=True)
class PluginPaths:
    """All paths of one instance. Files without the pod's UID in their name are shared by two instances."""

    dra_socket: Path
    registration_socket: Path
    instance_lock: Path
    call_lock: Path
    gpu_locks: Path
    """Folder of lock files, one per GPU on which effects were ever made."""
    recorded_mig: Path
    """Folder for the divisions of a recorded machine's GPUs."""
    writer_lock: Path
    """Lock file, held while an instance publishes; its content says which one published last."""
    gpu_driver_lock: Path
    """Lock file, with a shared lock while an instance has the GPU driver open."""
    release_request: Path
    """While this file is there, no instance opens the GPU driver."""
    release_labels: Path
    """While a label of the node asks us to release the GPU driver, this file says which."""
    checkpoints: Path
    """Folder."""
    ledger: Path
    """Folder for what was changed on the node, one file per thing."""
    metadata: Path
    """Folder of device metadata: `<namespace>_<claim>/<request>/metadata.json`."""
    podlist: Path
    """Folder of podlist.json: monitoring mounts the whole folder, because a mounted file would never change."""


def plugin_paths(kubelet_root: str, driver: str, pod_uid: str) -> PluginPaths:
    """Return the paths. An empty pod_uid gives the plain socket names of a single instance.

    Raises BadInputError for a socket path that the kernel would not take.
    """
    root = Path(kubelet_root)
    data = root / "plugins" / driver
    tail = f"-{pod_uid}" if pod_uid else ""
    return PluginPaths(
        dra_socket=_first_fitting(data, _dra_names(pod_uid)),
        registration_socket=_first_fitting(root / "plugins_registry", _registration_names(driver, pod_uid)),
        instance_lock=data / f"instance{tail}.lock",
        call_lock=data / "serialize.lock",
        gpu_locks=data / "gpus",
        recorded_mig=data / "recorded-mig",
        writer_lock=data / "publish.lock",
        gpu_driver_lock=data / "driver-in-use.lock",
        release_request=data / "release-driver",
        release_labels=data / LAST_ASKING,
        checkpoints=data / "claims",
        metadata=data / "dra-device-metadata",
        ledger=data / "ledger",
        podlist=root / "pod-resources",
    )


def instance_of_lock(name: str) -> str | None:
    """Return the pod_uid of the instance whose lock file has this name, None if it is no lock file."""
    match = _LOCK_NAME.fullmatch(name)
    return None if match is None else match["pod_uid"] or ""


def _dra_names(pod_uid: str) -> tuple[str, ...]:
    """Return the names to try, longest first. Nobody else knows them: registration tells kubelet the whole path."""
    return (f"dra-{pod_uid}.sock", f"dra-{_short(pod_uid, 8)}.sock") if pod_uid else ("dra.sock",)


def _registration_names(driver: str, pod_uid: str) -> tuple[str, ...]:
    """Return the names to try, longest first; those that the Kubernetes plugin library uses."""
    if not pod_uid:
        return (f"{driver}-reg.sock",)
    both = f"{driver}\0{pod_uid}"
    return (
        f"{driver}-{pod_uid}-reg.sock",
        f"{driver}-{_short(pod_uid, 8)}-reg.sock",
        f"dra-{_short(both, 16)}-reg.sock",
    )


def _short(identity: str, length_bytes: int) -> str:
    digest = hashlib.sha256(identity.encode()).digest()[:length_bytes]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _first_fitting(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if _length(folder / name) <= MAX_SOCKET_PATH_BYTES:
            return folder / name
    shortest = folder / names[-1]
    raise BadInputError(
        f"socket path {shortest} has {_length(shortest)} bytes, the kernel takes {MAX_SOCKET_PATH_BYTES}: "
        "choose a shorter kubelet root"
    )


def _length(path: Path) -> int:
    return len(str(path).encode())
