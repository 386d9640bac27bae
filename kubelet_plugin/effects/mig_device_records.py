"""Records which MIG devices were made for claims, one file per place, besides the checkpoints of these claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from dracaena.api.names import ClaimUid, DeviceName, gpu_device_name
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE, Effect, Scalar
from dracaena.kubelet_plugin.prepare.journals.mig_device import MigDeviceRecord, decode_mig_device, encode_mig_device

_PREFIX: Final = "made-"
_SUFFIX: Final = ".json"

log = structlog.get_logger()


class MigDeviceRecords:
    """From any thread; the records of one GPU belong to whoever holds its lock. All methods raise DracaenaError if a
    file cannot be read or written.
    """

    def __init__(
        self, files: DocumentStore, lock: NodeLock, boot_id: str, owner: Callable[[Effect], ClaimUid | None]
    ) -> None:
        """`lock` is the lock of the calls, which guards all writes on this node: checked(), made(), note() and
        forget() take it. `owner` returns, with it held, which claim has an effect in its journal.
        """
        self._owner = owner
        self._files = files
        self._lock = lock
        self._boot_id = boot_id

    def places(self) -> tuple[DeviceName, ...]:
        """Return all places with a record, from whatever boot; sorted."""
        names = (name for name in self._files.names(_SUFFIX) if name.startswith(_PREFIX))
        return tuple(sorted(DeviceName(name.removeprefix(_PREFIX).removesuffix(_SUFFIX)) for name in names))

    def of(self, place: DeviceName) -> tuple[ClaimUid, Effect] | None:
        """Return the claim for which the MIG device of a place was made in this boot, and the effect that made it; None
        if there is no record.
        """
        data = self._files.read(_name(place))
        if data is None:
            return None
        try:
            found = decode_mig_device(data)
        except ValueError as error:
            log.error("record of a MIG device is broken: the device counts as not ours", place=place, error=str(error))
            return None
        if found.boot_id != self._boot_id:
            return None
        given: dict[str, Scalar] = {
            "gpu": found.gpu, "profile": found.profile, "start": found.start, "size": found.size
        }  # fmt: skip
        outcome: dict[str, Scalar] = {"making": True, "gpu_instance": found.gpu_instance, "uuid": found.uuid}
        effect = Effect(MIG_INSTANCE, gpu_device_name(found.gpu), place, None, given, outcome)
        return ClaimUid(found.claim_uid), effect

    def checked(self, place: DeviceName) -> tuple[ClaimUid, Effect] | None:
        """Return the same, and remove a record that says nothing about this boot. Needs no lock of a GPU: a record that
        replaces that one meanwhile stays.
        """
        with self._lock.hold():
            found = self.of(place)
            if found is None:
                self._files.remove(_name(place))
            return found

    def made(self, effect: Effect) -> Mapping[str, Scalar] | None:
        """Return what an effect has made by its record, if that is for the claim that has the effect in its journal."""
        with self._lock.hold():
            claim = self._owner(effect)
            return None if claim is None else self.made_for(claim, effect)

    def made_for(self, claim: ClaimUid, effect: Effect) -> Mapping[str, Scalar] | None:
        """Return what an effect has made by its record, if that is for this claim. Needs no lock."""
        found = self.of(effect.device)
        if found is None or found[0] != claim or not found[1].is_same(effect):
            return None
        return found[1].outcome

    def note(self, effect: Effect, outcome: Mapping[str, Scalar]) -> None:
        """Record the MIG device that an effect has made."""
        given = effect.parameters
        with self._lock.hold():
            claim = self._owner(effect)
            if claim is None:
                return  # another call has settled the claim meanwhile, and this one will say so
            record = MigDeviceRecord(
                self._boot_id,
                claim,
                str(given["gpu"]),
                str(given["profile"]),
                int(given["start"]),
                int(given["size"]),
                int(outcome["gpu_instance"]),
                str(outcome["uuid"]),
            )
            self._files.write_if_changed(_name(effect.device), encode_mig_device(record))

    def forget(self, place: DeviceName) -> None:
        """Record that the MIG device of a place is gone."""
        with self._lock.hold():
            self._files.remove(_name(place))


def _name(place: DeviceName) -> str:
    return f"{_PREFIX}{place}{_SUFFIX}"
