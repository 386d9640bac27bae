"""podlist.json from entries; the plugin joins lines that it keeps."""

from __future__ import annotations

from collections.abc import Iterable

from dracaena.api.podlist import PodlistEntry, join_lines, podlist_line


def encode_podlist(entries: Iterable[PodlistEntry]) -> bytes:
    """Return the file's content from its entries, in any order."""
    return join_lines(podlist_line(entry) for entry in entries)
