"""The supervisor's folder: requests, statuses, the journal of compute modes, and the pipe folders."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Hashable, Mapping
from pathlib import Path

import msgspec

from dracaena.api import mps
from dracaena.api.errors import BadInputError, DracaenaError, PermanentError, TemporaryError
from dracaena.api.mps import MpsNodeStatus, MpsShareStatus
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.mps.adapters.selinux import label_folder
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import ModeJournal, PipesState
from dracaena.mps.planning.wants import ReadRequest
from dracaena.mps.protocol.v3 import gpu_of

_PIPE_MODE = 0o755
"""Clients of any user traverse it; only root creates names in it."""


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
                    entry = msgspec.json.decode(data, type=ModeJournal)
                    found[entry.gpu] = entry
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._journal.remove(name)
        return found

    def write_journal(self, entry: ModeJournal) -> None:
        """See MpsFiles."""
        self._journal.write(entry.gpu + mps.SUFFIX, msgspec.json.encode(entry))

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

    def pipes(self, gpu: str) -> PipesState:
        """See MpsFiles. Costs a look at each kept file."""
        kept = Path(self._places.kept_of(gpu))
        try:
            files = sorted(kept.iterdir())
        except OSError:
            return PipesState.UNKEPT
        changed = any(not _is_same(file, Path(self._places.pipes_of(gpu), file.name)) for file in files)
        return PipesState.CHANGED if changed else PipesState.KEPT

    def keep_pipes(self, gpu: str) -> None:
        """See MpsFiles. A further link to a socket leads to the same daemon, whatever becomes of the first."""
        self.forget_pipes(gpu)
        kept = Path(self._places.kept_of(gpu))
        half = _half(kept)
        try:
            half.mkdir(mode=0o700, parents=True)
            for file in sorted(Path(self._places.pipes_of(gpu)).iterdir()):
                mode = file.lstat().st_mode
                if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                    os.link(file, half / file.name, follow_symlinks=False)
            half.rename(kept)
        except OSError as error:
            raise TemporaryError(f"cannot keep the sockets in {kept}: {error.strerror}") from error

    def restore_pipes(self, gpu: str) -> None:
        """See MpsFiles."""
        pipes = Path(self._places.pipes_of(gpu))
        try:
            for file in sorted(Path(self._places.kept_of(gpu)).iterdir()):
                place, half = pipes / file.name, pipes / f".{file.name}.kept"
                if _is_same(file, place):
                    continue
                half.unlink(missing_ok=True)
                os.link(file, half, follow_symlinks=False)
                if place.is_dir() and not place.is_symlink():
                    shutil.rmtree(place)
                half.replace(place)
        except OSError as error:
            raise TemporaryError(f"cannot put the sockets back into {pipes}: {error.strerror}") from error

    def forget_pipes(self, gpu: str) -> None:
        """See MpsFiles."""
        kept = Path(self._places.kept_of(gpu))
        _remove(_half(kept))
        _remove(kept)

    def remove_folders(self, gpu: str) -> None:
        """See MpsFiles. The pipe folder is removed last, for the same reason."""
        self.forget_pipes(gpu)
        _remove(Path(self._places.logs_of(gpu)))
        _remove(Path(self._places.pipes_of(gpu)))


def _half(kept: Path) -> Path:
    """Return the folder that becomes `kept` once it is complete."""
    return kept.with_name(f".{kept.name}")


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise PermanentError(f"cannot remove {path}: {error.strerror}") from error


def _is_same(file: Path, other: Path) -> bool:
    try:
        return os.path.samestat(file.lstat(), other.lstat())
    except OSError:
        return False
