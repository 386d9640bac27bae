"""Removes what dead instances of the plugin left behind: lock files, sockets, half-written files.

Each plugin pod has its own lock file, which outlives it, and a process that is killed removes neither its sockets nor
the file that it was writing. Kubelet keeps retrying a stale socket in its registry folder.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.host.adapters.files.lock import FileLock
from dracaena.host.adapters.files.whole_files import DocumentFolder, DocumentTree
from dracaena.host.paths import PluginPaths, instance_of_lock, plugin_paths

log = structlog.get_logger()


def remove_stale_files(
    mine: PluginPaths,
    kubelet_root: str,
    driver: str,
    written: Sequence[tuple[DocumentFolder | DocumentTree, str]],
) -> None:
    """Remove all of it, except what a living instance has. What cannot be removed is logged; the next start retries.

    `written` holds the folders that instances write to under the call lock, each with the prefix of our file names
    there. The caller must hold the call lock, so that no living instance is writing a file and no starting instance
    is opening its lock file. Whether an instance lives is known only by its lock.
    """
    for lock, paths in _dead(mine, kubelet_root, driver):
        try:
            removed = [str(path) for path in (paths.registration_socket, paths.dra_socket) if _remove_socket(path)]
            lock.remove()
            log.info("stale files of an earlier instance removed", lock=str(lock.path), sockets=removed)
        except (OSError, DracaenaError) as error:
            lock.release()
            log.warning("stale files of an earlier instance stay", lock=str(lock.path), error=str(error))
    for folder, prefix in written:
        try:
            names = folder.remove_half_written(prefix)
        except DracaenaError as error:
            log.warning("half-written files stay", folder=str(folder.folder), error=str(error))
            continue
        if names:
            log.info("half-written files removed", folder=str(folder.folder), names=names)


def _dead(mine: PluginPaths, kubelet_root: str, driver: str) -> Iterator[tuple[FileLock, PluginPaths]]:
    """Yield the other instances whose lock is free, each with its lock held."""
    folder = mine.instance_lock.parent
    for name in DocumentFolder(folder).names(".lock"):
        path, pod_uid = folder / name, instance_of_lock(name)
        if pod_uid is None or path == mine.instance_lock:
            continue
        try:
            lock, paths = FileLock(path), plugin_paths(kubelet_root, driver, pod_uid)
            if lock.try_acquire():
                yield lock, paths
        except DracaenaError as error:
            log.warning("lock file of an earlier instance stays", lock=str(path), error=str(error))


def _remove_socket(path: Path) -> bool:
    """Remove a socket; return whether one was there. Anything else of that name is not ours."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
    except FileNotFoundError:
        return False
    path.unlink(missing_ok=True)
    return True
