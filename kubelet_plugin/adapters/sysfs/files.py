"""Small files and links of /sys, whose contents are accepted only in the form that the kernel writes.

Paths may be text: a reading of the bus looks at hundreds of files, and most of its time would go into joining Paths.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 256
"""Longest content of an attribute that is read. The kernel's have some ten bytes."""
MOST_ENTRIES: Final = 65_536
"""Most entries of a folder that are read: the addresses of one PCI domain."""

IOMMU_GROUP: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
DRIVER_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)


class UnreadableSysfsError(Exception):
    """Sysfs has something that no kernel writes; the text names the file, what was seen and what was expected."""


def is_folder(path: str) -> bool:
    """Tell whether there is such a folder, or a link to one."""
    return os.path.isdir(path)  # noqa: PTH112 - a Path costs four times as much


def is_there(path: str) -> bool:
    """Tell whether there is anything at that path, and not only a link to nothing."""
    return os.path.exists(path)  # noqa: PTH110 - as above


def names(folder: Path | str) -> list[str]:
    """Return the names in a folder, sorted; none if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in itertools.islice(entries, MOST_ENTRIES))
    except OSError:
        return []


def text(file: Path | str, most_bytes: int = MOST_BYTES) -> str | None:
    """Return the content of an attribute without its line end, None if it cannot be read or is not one."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        content = os.read(opened, most_bytes + 1)  # an attribute of sysfs is read at once
    except OSError:
        return None
    finally:
        os.close(opened)
    return content.decode("ascii", errors="replace").strip() if len(content) <= most_bytes else "…"


def matched(file: Path | str, form: re.Pattern[str], expected: str) -> re.Match[str]:
    """Return the match of an attribute's content. Raises UnreadableSysfsError if it has another form."""
    found = text(file)
    match = form.fullmatch(found or "")
    if match is None:
        raise UnreadableSysfsError(
            f"{file} says {'nothing' if found is None else repr(found[:80])}, expected {expected}"
        )
    return match


def last_part(target: str) -> str:
    """Return the name of what a link leads to."""
    return target.rstrip("/").rpartition("/")[2]


def link(path: Path | str, form: re.Pattern[str], expected: str) -> str | None:
    """Return the last part of a link's target; None: there is no link. Raises UnreadableSysfsError for another form."""
    try:
        target = last_part(os.readlink(path))  # noqa: PTH115 - as above
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableSysfsError(f"{path} cannot be read: {error.strerror}, expected a link to {expected}") from error
    if form.fullmatch(target) is None:
        raise UnreadableSysfsError(f"{path} leads to {target[:80]!r}, expected {expected}")
    return target
