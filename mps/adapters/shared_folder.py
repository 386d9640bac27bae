"""The supervisor's folder: requests, statuses, the journal of compute modes, and the pipe folders."""

from __future__ import annotations

import shutil
from collections.abc import Hashable, Mapping
from pathlib import Path

import msgspec

from dracaena.api import mps
from dracaena.api.errors import BadInputError, DracaenaError, PermanentError
from dracaena.api.mps import MpsNodeStatus, MpsShareStatus
from dracaena.kubelet_plugin.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.mps.adapters.selinux import label_folder
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import ComputeMode, ModeJournal
from dracaena.mps.planning.wants import ReadRequest
from dracaena.mps.protocol.v3 import gpu_of

_PIPE_MODE = 0o755
"""Clients of any user traverse it; only root creates names in it."""


class _JournalFile(msgspec.Struct, frozen=True, kw_only=True):
    format: int = 1
    gpu: str
    boot_id: str
    previous: str


class SharedFolder:
    """Implements dracaena.mps.ports.MpsFiles. Used by one thread. `steps`: a seam for tests. `label` is the SELinux
    label of folders that containers mount, "": none.
    """

    def __init__(self, places: MpsPlaces, steps: FileSteps | None = None, *, label: str = "") -> None:
        self._places = places
        self._label = label
        root = Path(places.root)
        self._requests = DocumentFolder(root / mps.REQUESTS, steps=steps, synced=False)
        self._statuses = DocumentFolder(root / mps.STATUS, steps=steps, synced=False)
        self._node = DocumentFolder(root, steps=steps, synced=False)
        self._journal = DocumentFolder(Path(places.journal), steps=steps)
        self._stamps: Mapping[str, Hashable] | None = None
        self._read: dict[str, tuple[Hashable, ReadRequest]] = {}

    def prepare(self) -> None:
        """Create the folders, and remove what a crash left half-written. Raises PermanentError."""
        try:
            for path, mode in (
                (Path(self._places.root), _PIPE_MODE),
                (self._requests.folder, _PIPE_MODE),
                (Path(self._places.pipes), _PIPE_MODE),
                (Path(self._places.logs), _PIPE_MODE),
            ):
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(mode)
        except OSError as error:
            raise PermanentError(f"cannot make {error.filename}: {error.strerror}") from error
        label_folder(self._places.pipes, self._label)
        for folder in (self._statuses, self._journal):
            folder.remove_half_written()

    def requests(self) -> Mapping[str, ReadRequest]:
        """See MpsFiles."""
        self._stamps = self._requests.stamps(mps.SUFFIX)
        known, self._read = self._read, {}
        for name, stamp in self._stamps.items():
            share = name.removesuffix(mps.SUFFIX)
            if not mps.SHARE_NAME.fullmatch(share):
                continue  # not a share's file: not ours to judge
            before = known.get(share)
            read = before[1] if before is not None and before[0] == stamp else self._one_request(name)
            if read is not None:
                self._read[share] = (stamp, read)
        return {share: read for share, (_, read) in sorted(self._read.items())}

    def requests_changed(self) -> bool:
        """See MpsFiles."""
        return self._requests.stamps(mps.SUFFIX) != self._stamps

    def _one_request(self, name: str) -> ReadRequest | None:
        try:
            data = self._requests.read(name)
        except DracaenaError as error:
            return ReadRequest("", None, str(error))
        if data is None:
            return None
        try:
            return ReadRequest(mps.digest(data), mps.decode_request(data))
        except BadInputError as error:
            return ReadRequest(mps.digest(data), None, f"{self._requests.folder / name}: {error}")

    def statuses(self) -> Mapping[str, MpsShareStatus]:
        """See MpsFiles."""
        found = {}
        for name in self._statuses.names(mps.SUFFIX):
            share = name.removesuffix(mps.SUFFIX)
            try:
                data = self._statuses.read(name)
                if data is not None:
                    found[share] = mps.decode_status(data)
            except BadInputError:
                self._statuses.remove(name)
        return found

    def write_status(self, share: str, status: MpsShareStatus) -> None:
        """See MpsFiles."""
        self._statuses.write_if_changed(share + mps.SUFFIX, mps.encode(status))

    def remove_status(self, share: str) -> None:
        """See MpsFiles."""
        self._statuses.remove(share + mps.SUFFIX)

    def read_node(self) -> MpsNodeStatus | None:
        """See MpsFiles."""
        try:
            data = self._node.read(mps.NODE_STATUS)
            return mps.decode_node_status(data) if data is not None else None
        except BadInputError:
            return None

    def write_node(self, status: MpsNodeStatus) -> None:
        """See MpsFiles."""
        self._node.write_if_changed(mps.NODE_STATUS, mps.encode(status))

    def journal(self) -> Mapping[str, ModeJournal]:
        """See MpsFiles. An entry that does not decode names no mode to restore: it is removed."""
        found = {}
        for name in self._journal.names(mps.SUFFIX):
            try:
                data = self._journal.read(name)
                if data is not None:
                    entry = msgspec.json.decode(data, type=_JournalFile)
                    found[entry.gpu] = ModeJournal(entry.gpu, entry.boot_id, ComputeMode[entry.previous])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
                self._journal.remove(name)
        return found

    def write_journal(self, entry: ModeJournal) -> None:
        """See MpsFiles."""
        document = _JournalFile(gpu=entry.gpu, boot_id=entry.boot_id, previous=entry.previous.name)
        self._journal.write(entry.gpu + mps.SUFFIX, msgspec.json.encode(document))

    def remove_journal(self, gpu: str) -> None:
        """See MpsFiles."""
        self._journal.remove(gpu + mps.SUFFIX)

    def folders(self) -> tuple[str, ...]:
        """See MpsFiles."""
        try:
            names = [path.name for path in Path(self._places.pipes).iterdir() if path.is_dir()]
        except OSError:
            return ()
        return tuple(sorted(gpu for gpu in map(gpu_of, names) if gpu is not None))

    def make_folders(self, gpu: str) -> None:
        """See MpsFiles. The pipe folder is made last: it shows that both exist."""
        for path in (Path(self._places.logs_of(gpu)), Path(self._places.pipes_of(gpu))):
            try:
                path.mkdir(mode=_PIPE_MODE, parents=True, exist_ok=True)
                path.chmod(_PIPE_MODE)
            except OSError as error:
                raise PermanentError(f"cannot make {path}: {error.strerror}") from error
            label_folder(str(path), self._label)

    def remove_folders(self, gpu: str) -> None:
        """See MpsFiles. The pipe folder is removed last, for the same reason."""
        for path in (Path(self._places.logs_of(gpu)), Path(self._places.pipes_of(gpu))):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise PermanentError(f"cannot remove {path}: {error.strerror}") from error
