"""Files that are replaced as a whole or not at all.

What a call did outlives the process at once, however that ends: the kernel has it. A power cut may undo the last
calls: an older file, one that was removed, or none may be there then, as no folder is synced; and where content is not
synced either, half a file. Nothing of what a prepare writes needs more, because a power cut means another boot id:

* a checkpoint of an earlier boot holds no device, and one that cannot be read has a checksum that says so: the first
  start in a boot removes those (DeviceState.enter_boot);
* a CDI spec and device metadata are read for containers of claims that were prepared in this boot, which wrote them
  anew. A runtime reads its CDI folder file by file: one that does not parse is logged and hides no other;
* podlist.json and the job mapping name pods of the boot before until the plugin has started, whole or not, and are
  made right then.

So those are not synced (docs/design/0015-no-fsync.md). What is read in a later boot is: it is `synced` before it is
put in its place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

from dracaena.api.errors import PermanentError, TemporaryError

_TEMPORARY_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""What may pass with nobody touching our files: full disk or quota, device trouble, too many open files."""

TICK_NS = 50_000_000
"""The kernel takes the times of files from a clock that moves each 1 to 10 ms; a few of its steps."""

_HALF_WRITTEN = ".tmp"
"""End of the hidden name under which a file is written before it is put in its place."""


class FileSteps:
    """The single steps of a replacement or removal: a seam where tests stop a process or fill the disk."""

    def write(self, descriptor: int, data: bytes) -> None:
        """Write all of data."""
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def fsync(self, descriptor: int) -> None:
        """Make content durable."""
        os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Put source in the place of target at once."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file that is there."""
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder that is there and empty."""
        path.rmdir()


class DocumentFolder:
    """The files of one folder. The folder is made when the first file is written.

    All methods raise TemporaryError (it may pass) or PermanentError (somebody must act), both naming the path.
    """

    def __init__(
        self,
        folder: Path,
        *,
        mode: int = 0o644,
        steps: FileSteps | None = None,
        synced: bool = True,
        in_place: bool = False,
    ) -> None:
        """`synced`: a file that is there is whole after a power cut too. Costs one fsync a write.

        `in_place`: files are overwritten, for readers that mounted a single file: a rename never reaches those. A
        reader can then see half a file unless it takes flock(2) on `.<name>.lock`, shared, while it reads.
        """
        self.folder = folder
        self._mode = mode
        self._steps = steps or FileSteps()
        self._synced = synced
        self._put = self._overwrite if in_place else self._replace

    def names(self, suffix: str) -> tuple[str, ...]:
        """Return the names of all files that end so, sorted; half-written ones (hidden) are not among them.

        Nor is a folder of such a name: it is in the way of one file, and must not be in the way of all.
        """
        with _our_errors("read", self.folder):
            try:
                with os.scandir(self.folder) as entries:
                    found = [entry.name for entry in entries if not entry.is_dir()]
            except (FileNotFoundError, NotADirectoryError):
                return ()
        return tuple(sorted(name for name in found if name.endswith(suffix) and not name.startswith(".")))

    def stamps(self, suffix: str) -> Mapping[str, Hashable]:
        """Return the files that names() would, each with inode, size and times: another value after each write.

        One look at the folder and one at each file, some microseconds each: to see which are worth reading again. A
        file that was written just now never has the same value twice: the next write may leave all four as they are.
        """
        found: dict[str, Hashable] = {}
        settled_ns = time.time_ns() - TICK_NS
        with _our_errors("read", self.folder):
            try:
                with os.scandir(self.folder) as entries:
                    for entry in entries:
                        if entry.name.endswith(suffix) and not entry.name.startswith(".") and not entry.is_dir():
                            with contextlib.suppress(FileNotFoundError):
                                found[entry.name] = _stamp(entry.stat(), settled_ns)
            except (FileNotFoundError, NotADirectoryError):
                return {}
        return dict(sorted(found.items()))

    def set_mark(self) -> Hashable | None:
        """Give the folder a time of change that it will not get otherwise and return its mark.

        The kernel sets that time with each file that is made, replaced or removed, in steps of some milliseconds: two
        changes within one step would look like one. None where the file system takes or keeps no such time.
        """
        second_ns = 10**9
        wanted_ns = time.time_ns() // second_ns * second_ns + secrets.randbelow(second_ns)
        try:
            os.utime(self.folder, ns=(wanted_ns, wanted_ns))
        except OSError:
            return None
        mark = self.mark()
        return mark if mark is not None and mark[-1] == wanted_ns else None

    def mark(self) -> tuple[int, int, int] | None:
        """Return the folder's mark, None when there is no folder."""
        try:
            seen = self.folder.stat()
        except OSError:
            return None
        return (seen.st_dev, seen.st_ino, seen.st_mtime_ns)

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None when there is none."""
        path = self.folder / name
        with _our_errors("read", path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def write(self, name: str, data: bytes) -> None:
        """Replace a file: readers see the old content or the new one, also after a crash of this process.

        In place the file is overwritten: after a crash it may hold a part of both.
        """
        path = self.folder / name
        with _our_errors("write", path):
            try:
                self._put(path, data)
            except FileNotFoundError:  # the folder is nearly always there
                self.folder.mkdir(parents=True, exist_ok=True)
                self._put(path, data)

    def try_to_write(self, prefix: str = "") -> None:
        """Make and remove an empty hidden file, and the folder before it; remove_half_written(prefix) finds it too."""
        path = self.folder / f".{prefix}try{_HALF_WRITTEN}"
        with _our_errors("write to", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, self._mode))
            path.unlink()

    def write_if_changed(self, name: str, data: bytes) -> bool:
        """Replace a file unless it has this content already; return whether it was written."""
        if self.read(name) == data:
            return False
        self.write(name, data)
        return True

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is fine, also where nothing can be removed."""
        path = self.folder / name
        with _our_errors("remove", path):
            try:
                os.lstat(path)  # a read-only file system refuses to remove (EROFS) before it looks what is there
                self._steps.remove(path)
            except (FileNotFoundError, NotADirectoryError):
                return

    def remove_half_written(self, prefix: str = "") -> tuple[str, ...]:
        """Remove what a crash left of files whose names start so; return the names of what was removed, sorted.

        Nobody may write such a file meanwhile.
        """
        with _our_errors("read", self.folder):
            try:
                found = sorted(path.name for path in self.folder.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return ()
        left = tuple(name for name in found if name.startswith(f".{prefix}") and name.endswith(_HALF_WRITTEN))
        for name in left:
            self.remove(name)
        return left

    def _replace(self, path: Path, data: bytes) -> None:
        # One fixed hidden name a file: a crash leaves at most one, and the next write takes it over. Two writers of
        # one file do not meet: they hold the plugin's lock.
        temporary = self.folder / f".{path.name}{_HALF_WRITTEN}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, self._mode)
            try:
                self._steps.write(descriptor, data)
                os.fchmod(descriptor, self._mode)  # whatever the umask: monitoring reads podlist.json without root
                if self._synced:
                    self._steps.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._steps.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _overwrite(self, path: Path, data: bytes) -> None:
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode)
        try:
            os.fchmod(lock, self._mode)  # readers without root shall be able to lock
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # a reader that hangs with the lock must not hold up prepare: who reads next sees a whole file
        except BaseException:
            os.close(lock)
            raise
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode)
            try:
                self._steps.write(descriptor, data)
                os.ftruncate(descriptor, len(data))
                os.fchmod(descriptor, self._mode)
                if self._synced:
                    self._steps.fsync(descriptor)
            finally:
                os.close(descriptor)
        finally:
            os.close(lock)


class DocumentTree:
    """Files in folders below one folder, named by their path. Folders are made and removed with what is in them.

    Methods raise as those of DocumentFolder do.
    """

    def __init__(self, folder: Path, *, mode: int = 0o644, steps: FileSteps | None = None, synced: bool = True) -> None:
        """`synced`: as of DocumentFolder."""
        self.folder = folder
        self._mode = mode
        self._steps = steps or FileSteps()
        self._synced = synced

    def names(self, suffix: str) -> tuple[str, ...]:
        """Return the paths of all files that end so, sorted; half-written ones (hidden) are not among them."""
        return tuple(
            sorted(
                str((folder / name).relative_to(self.folder))
                for folder in self._folders()
                for name in DocumentFolder(folder).names(suffix)
            )
        )

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None when there is none."""
        return self._folder_of(name).read(Path(name).name)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file, as DocumentFolder.write."""
        self._folder_of(name).write(Path(name).name, data)

    def write_if_changed(self, name: str, data: bytes) -> bool:
        """Replace a file unless it has this content already; return whether it was written."""
        return self._folder_of(name).write_if_changed(Path(name).name, data)

    def remove(self, name: str) -> None:
        """Remove a file, one that is not there is fine, and the folders above it that are empty then."""
        folder = self._folder_of(name)
        folder.remove(Path(name).name)
        self._remove_empty(folder.folder)

    def remove_half_written(self, prefix: str = "") -> tuple[str, ...]:
        """Remove what a crash left, empty folders too; return the paths of the files, sorted.

        Nobody may write below the folder meanwhile.
        """
        left = []
        for folder in self._folders():
            files = DocumentFolder(folder, steps=self._steps)
            left += [str((folder / name).relative_to(self.folder)) for name in files.remove_half_written(prefix)]
            self._remove_empty(folder)
        return tuple(sorted(left))

    def _folder_of(self, name: str) -> DocumentFolder:
        return DocumentFolder((self.folder / name).parent, mode=self._mode, steps=self._steps, synced=self._synced)

    def _folders(self) -> tuple[Path, ...]:
        """Return the folder and all below it, the deepest first."""
        with _our_errors("read", self.folder):
            return tuple(Path(folder) for folder, _, _ in os.walk(self.folder, topdown=False))

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.folder:
            with _our_errors("remove", folder):
                try:
                    self._steps.remove_folder(folder)
                except (FileNotFoundError, NotADirectoryError):
                    pass
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    return
            folder = folder.parent


def _stamp(seen: os.stat_result, settled_ns: int) -> Hashable:
    if seen.st_ctime_ns > settled_ns:
        return object()
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


@contextlib.contextmanager
def _our_errors(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        family = TemporaryError if error.errno in _TEMPORARY_ERRNOS else PermanentError
        raise family(f"cannot {what} {path}: {error.strerror}") from error
