"""What a kubelet remembers about prepared claims across its own restarts: a small state file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

STATE_FILE = "dra_manager_state"
"""Name of the real kubelet's file; the content is our own."""

log = structlog.get_logger()


class PluginDevice(msgspec.Struct, frozen=True):
    """One device of a plugin's answer; empty request names mean every request of the claim."""

    request_names: tuple[str, ...]
    cdi_device_ids: tuple[str, ...]


class ClaimInfo(msgspec.Struct, frozen=True):
    """A claim in use on this node. `drivers` and `pod_uids` are sorted.

    `devices` is None until all drivers have prepared the claim. As in the real one, it is not kept across a restart:
    the next pod leads to a new call, which plugins answer without doing anything twice.
    """

    uid: str
    namespace: str
    name: str
    drivers: tuple[str, ...]
    pod_uids: tuple[str, ...]
    devices: tuple[PluginDevice, ...] | None = None

    def with_pod(self, pod_uid: str) -> ClaimInfo:
        """Return the claim with one more pod."""
        return msgspec.structs.replace(self, pod_uids=tuple(sorted({*self.pod_uids, pod_uid})))

    def kept_for(self, pod_uids: Iterable[str]) -> ClaimInfo:
        """Return the claim with only those of its pods that are in pod_uids."""
        return msgspec.structs.replace(self, pod_uids=tuple(sorted(set(self.pod_uids).intersection(pod_uids))))


class ClaimState:
    """All claims in use on this node, written to disk before anything is done with them. Used by one thread."""

    def __init__(self, kubelet_root: Path) -> None:
        self._path = kubelet_root / STATE_FILE
        self._claims: dict[str, ClaimInfo] = self._read()

    def get(self, uid: str) -> ClaimInfo | None:
        """Return the claim with this UID if it is in use."""
        return self._claims.get(uid)

    def values(self) -> tuple[ClaimInfo, ...]:
        """Return all claims, sorted by UID."""
        return tuple(self._claims[uid] for uid in sorted(self._claims))

    def put(self, *infos: ClaimInfo) -> None:
        """Remember claims; on return they are on disk."""
        self._claims.update((info.uid, info) for info in infos)
        self._write()

    def remove(self, uid: str) -> None:
        """Forget an unprepared claim; on return that is on disk."""
        self._claims.pop(uid, None)
        self._write()

    def _read(self) -> dict[str, ClaimInfo]:
        try:
            infos = msgspec.json.decode(self._path.read_bytes(), type=list[ClaimInfo])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            log.warning("kubelet state does not decode, starting without", path=str(self._path), error=str(error))
            return {}
        return {info.uid: info for info in infos}

    def _write(self) -> None:
        kept = [msgspec.structs.replace(info, devices=None) for info in self.values()]
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(kept))
        os.replace(fresh, self._path)
