"""Files that are replaced as a whole or not at all.

The effect of a call outlives the process, however it ends: the kernel has it. A power cut may undo the last calls: it
may leave an older file, a file that was removed, no file, or half a file. What a prepare writes needs no more than
that, because a power cut means another boot id:

* a checkpoint of an earlier boot holds no device, and one that cannot be read has a checksum that says so: the first
  start in a boot removes those (ClaimRecovery.enter_boot);
* a CDI spec and device metadata are read for containers of claims that were prepared in this boot, which rewrote them.
  A runtime reads its CDI folder file by file: one that does not parse is logged and does not hide the others;
* podlist.json and the job mapping, whole or not, name pods of the previous boot until the plugin has started and
  corrects them.

So those are not synced (docs/design/ledger.md#power-cuts). Files that a later boot reads are `synced` before they are
renamed into place, and their folder after that: what was written survives a power cut. What was removed may be back.

We write as root, partly into folders that others can change (the job mapping is an admin's own folder). So a file is
always created under a name that nobody else has, never through a link, and below the folder that was opened; a folder
that somebody else could replace with a link is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

from dracaena.api.errors import PermanentError, TemporaryError

_TEMPORARY_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)
"""Errors that may pass without a change to our files: full disk or quota, device trouble, too many open files."""

_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})

TICK_NS = 50_000_000
"""The kernel takes file times from a clock that ticks every 1 to 10 ms; this is a few of its ticks."""

_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for files that we open: never follow a link, and never wait for the other end of a pipe."""

_CREATE_TRIES = 3
"""Attempts. A file with our hidden name that reappears each time we remove it is recreated on purpose."""

_STAT_BLOCK_BYTES = 512
"""Unit of st_blocks, whatever the block size of the file system (stat(2))."""

_HALF_WRITTEN = ".tmp"
"""Suffix of the hidden name under which a file is written before it is renamed into place."""


class FileSteps:
    """The single steps of a replacement or removal: a seam where tests kill the process or fill the disk."""

    def write(self, descriptor: int, data: bytes) -> None:
        """Write all of data."""
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def overwrite(self, descriptor: int, data: bytes) -> None:
        """Write all of data over the beginning of a file that has the space for it."""
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], done)

    def fsync(self, descriptor: int) -> None:
        """Make content durable, or the names in a folder."""
        os.fsync(descriptor)

    def rename(self, source: Path, target: Path, folder: int) -> None:
        """Replace target by source atomically. `folder` is the descriptor of the folder of both."""
        os.replace(source.name, target.name, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, path: Path, folder: int) -> None:
        """Remove an existing file. `folder` is the descriptor of its folder."""
        os.unlink(path.name, dir_fd=folder)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder that exists and is empty."""
        path.rmdir()


class DocumentFolder:
    """The files of one folder. The folder is created when the first file is written.

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
        in_place_if_full: bool = False,
    ) -> None:
        """`synced`: a written file is there, and whole, even after a power cut. Costs two fsyncs per write, of the
        content and of the folder.

        `in_place_if_full`: while the disk is full, a file is overwritten within the space that it has, and filled up
        with newlines to its former size; most file systems can do that. This is for documents that only holders of one
        lock read, and that must be changed before space can be given back. A crash leaves the old or the new content
        if both fit into a page.

        `in_place`: files are overwritten, for readers that mounted a single file, which a rename never reaches. A
        reader can then see half a file unless it holds a shared flock(2) on `.<name>.lock` while it reads.
        """
        self.folder = folder
        self._mode = mode
        self._steps = steps or FileSteps()
        self._synced = synced
        self._put = self._overwrite if in_place else self._replace
        self._in_place_if_full = in_place_if_full
        self._looked_at: tuple[int, int] | None = None  # device and inode of the folder that is known to be ours

    def names(self, suffix: str) -> tuple[str, ...]:
        """Return the names of all files with this ending, sorted, without half-written ones (hidden).

        A folder of such a name is left out too: it blocks one file, and must not block all.
        """
        with _our_errors("read", self.folder):
            try:
                with os.scandir(self.folder) as entries:
                    found = [entry.name for entry in entries if not entry.is_dir()]
            except (FileNotFoundError, NotADirectoryError):
                return ()
        return tuple(sorted(name for name in found if name.endswith(suffix) and not name.startswith(".")))

    def stamps(self, suffix: str) -> Mapping[str, Hashable]:
        """Return the files that names() lists, each with inode, size and times: a value that changes with each write.

        One look at the folder and one at each file, some microseconds each, show which are worth reading again. While a
        file was written just now, its value differs each time, because another write may leave all four unchanged.
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
        """Give the folder a modification time that it would not get otherwise, and return it as the mark.

        The kernel sets that time whenever a file is created, replaced or removed, in steps of some milliseconds: two
        changes within one step would look like one. None if the file system does not accept or keep such a time.
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
        """Return the folder's mark, None if there is no folder."""
        try:
            seen = self.folder.stat()
        except OSError:
            return None
        return (seen.st_dev, seen.st_ino, seen.st_mtime_ns)

    def read(self, name: str) -> bytes | None:
        """Return a file's content, None if there is no file. A link is an error, and not followed."""
        path = self.folder / name
        with _our_errors("read", path):
            try:
                descriptor = os.open(path, os.O_RDONLY | _PLAIN)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise OSError(errno.ELOOP, "it is a link, expected a file; remove it") from error
                raise
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, "it is not a plain file; remove it")
                return file.read()

    def write(self, name: str, data: bytes) -> None:
        """Replace a file: readers see the old content or the new one, also after a crash of this process.

        In place the file is overwritten: after a crash it may hold a part of both.
        """
        path = self.folder / name
        with _our_errors("write", path), self._opened(make=True) as folder:
            try:
                self._put(path, data, folder)
            except OSError as error:
                if error.errno not in _FULL_ERRNOS or not self._in_place_if_full:
                    raise
                if not self._overwrite_within(path, data, folder):
                    raise

    def touch(self, name: str) -> None:
        """Set a file's modification time to now, to show readers that its content was checked. It must exist."""
        with _our_errors("touch", self.folder / name), self._opened() as folder:
            os.utime(name, dir_fd=folder, follow_symlinks=False)

    def try_to_write(self, prefix: str = "") -> None:
        """Create the folder, then create and remove a hidden file; remove_half_written(prefix) finds it as well."""
        name = f".{prefix}try{_HALF_WRITTEN}"
        with _our_errors("write to", self.folder), self._opened(make=True) as folder:
            os.close(self._create(name, folder))
            os.unlink(name, dir_fd=folder)

    def write_if_changed(self, name: str, data: bytes) -> bool:
        """Replace a file unless it has this content already; return whether it was written."""
        try:
            if self.read(name) == data:
                return False
        except PermanentError:
            pass  # a link or a pipe, for example: it is replaced by a file
        self.write(name, data)
        return True

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is fine, even if nothing can be removed there."""
        path = self.folder / name
        with _our_errors("remove", path):
            try:
                os.lstat(path)  # a read-only file system refuses (EROFS) before it checks whether the file exists
                with self._opened() as folder:
                    self._steps.remove(path, folder)
            except (FileNotFoundError, NotADirectoryError):
                return

    def remove_half_written(self, prefix: str = "") -> tuple[str, ...]:
        """Remove half-written files whose names start with a prefix; return the removed names, sorted.

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

    @contextlib.contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[int]:
        """Open the folder for a block: files are written into this folder, even if its path leads elsewhere by then."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            folder = os.open(self.folder, flags)
        except FileNotFoundError:  # the folder nearly always exists
            if not make:
                raise
            self.folder.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.folder, flags)
        try:
            self._refuse_folder_of_others(folder)
            yield folder
        finally:
            os.close(folder)

    def _refuse_folder_of_others(self, folder: int) -> None:
        """Check each folder that the path leads to once, by its identity."""
        seen = os.fstat(folder)
        if (seen.st_dev, seen.st_ino) != self._looked_at:
            refuse_what_others_may_write(self.folder)
            self._looked_at = (seen.st_dev, seen.st_ino)

    def _create(self, name: str, folder: int) -> int:
        """Create a new file and return its descriptor; anything that has its name, such as a link, is removed."""
        for _ in range(_CREATE_TRIES):
            try:
                return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, self._mode, dir_fd=folder)
            except FileExistsError:
                os.unlink(name, dir_fd=folder)
        raise OSError(errno.EEXIST, f"somebody else keeps creating {name} there")

    def _replace(self, path: Path, data: bytes, folder: int) -> None:
        # One fixed hidden name per file: a crash leaves at most one, and the next write replaces it. There are never
        # two writers of one file, because a writer holds the plugin's lock.
        temporary = self.folder / f".{path.name}{_HALF_WRITTEN}"
        descriptor = self._create(temporary.name, folder)
        try:
            try:
                self._steps.write(descriptor, data)
                os.fchmod(descriptor, self._mode)  # despite the umask: monitoring reads podlist.json without root
                if self._synced:
                    self._steps.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._steps.rename(temporary, path, folder)
            if self._synced:
                self._sync_names(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary.name, dir_fd=folder)
            raise

    def _sync_names(self, folder: int) -> None:
        try:
            self._steps.fsync(folder)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):  # not with every file system
                raise

    def _overwrite(self, path: Path, data: bytes, folder: int) -> None:
        lock = self._open_ours(f".{path.name}.lock", folder)
        try:
            os.fchmod(lock, self._mode)  # readers that are not root must be able to lock
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # a reader that hangs with the lock must not delay prepare: the next reader sees a whole file
        except BaseException:
            os.close(lock)
            raise
        try:
            descriptor = self._open_ours(path.name, folder)
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

    def _overwrite_within(self, path: Path, data: bytes, folder: int) -> bool:
        """Overwrite a file within the space that it has; return False if it is missing or the space does not do."""
        try:
            descriptor = os.open(path.name, os.O_RDWR | _PLAIN, dir_fd=folder)
        except FileNotFoundError:
            return False
        try:
            seen = os.fstat(descriptor)
            space_bytes = max(seen.st_size, seen.st_blocks * _STAT_BLOCK_BYTES)
            if not stat.S_ISREG(seen.st_mode) or seen.st_nlink != 1 or len(data) > space_bytes:
                return False
            self._steps.overwrite(descriptor, data.ljust(seen.st_size, b"\n"))
            if self._synced:
                self._steps.fsync(descriptor)
            return True
        finally:
            os.close(descriptor)

    def _open_ours(self, name: str, folder: int) -> int:
        """Open or create a file to change it in place: a plain one with a single name, so that it is surely ours."""
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | _PLAIN, self._mode, dir_fd=folder)
        seen = os.fstat(descriptor)
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
            return descriptor
        os.close(descriptor)
        raise OSError(errno.ELOOP, f"{name} is not a plain file of one name; remove it")


class DocumentTree:
    """Files in folders below one folder, named by their path. Folders are created and removed with their files.

    Methods raise as those of DocumentFolder do.
    """

    def __init__(self, folder: Path, *, mode: int = 0o644, steps: FileSteps | None = None, synced: bool = True) -> None:
        """`synced`: see DocumentFolder."""
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
        """Return a file's content, None if there is none."""
        return self._folder_of(name).read(Path(name).name)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file; see DocumentFolder.write."""
        self._folder_of(name).write(Path(name).name, data)

    def write_if_changed(self, name: str, data: bytes) -> bool:
        """Replace a file unless it has this content already; return whether it was written."""
        return self._folder_of(name).write_if_changed(Path(name).name, data)

    def remove(self, name: str) -> None:
        """Remove a file (a missing one is fine), and the folders above it that are empty then."""
        folder = self._folder_of(name)
        folder.remove(Path(name).name)
        self._remove_empty(folder.folder)

    def remove_half_written(self, prefix: str = "") -> tuple[str, ...]:
        """Remove half-written files and empty folders; return the paths of the files, sorted.

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


def refuse_what_others_may_write(path: Path) -> None:
    """Raise OSError if we are root and others may change this file or folder, or put a link in its place. Its strerror
    says what to do.

    A world-writable folder where users can only remove their own files (sticky, as /tmp) is fine, and so is all below
    it.
    """
    for each in dict.fromkeys((path.absolute(), Path(os.path.realpath(path)))):
        for place in (each, *each.parents):
            refuse_place_of_others(place)


def refuse_place_of_others(place: Path, *, sticky_is_fine: bool = True) -> None:
    """The same of one file or folder alone, whatever leads to it. In a sticky folder others may still add files."""
    if os.geteuid() != 0:
        return  # without root a link can only lead to what our own user may change
    seen = place.stat()
    others_write = seen.st_mode & stat.S_IWOTH or (seen.st_mode & stat.S_IWGRP and seen.st_gid != 0)
    owner = seen.st_uid or place.lstat().st_uid
    if owner != 0:
        raise OSError(errno.EPERM, f"{place} belongs to user {owner}, expected root: chown -h root {place}")
    is_sticky = stat.S_ISDIR(seen.st_mode) and seen.st_mode & stat.S_ISVTX
    if others_write and not (is_sticky and sticky_is_fine):
        mode = f"{stat.S_IMODE(seen.st_mode):o}"
        raise OSError(errno.EPERM, f"users other than root may write to {place} (mode {mode}): chmod go-w {place}")


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
