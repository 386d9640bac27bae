from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from dracaena.api.podlist import PODLIST, PodlistEntry, decode_podlist
from dracaena.exporter.adapters import podlist_file
from dracaena.exporter.adapters.podlist_file import PodlistFile
from support.podlists import encode_podlist

ENTRY = PodlistEntry("a", "n", "c", ("GPU-0",))


def put(folder: Path, data: bytes, at_s: float) -> None:
    (folder / PODLIST).write_bytes(data)
    os.utime(folder / PODLIST, (at_s, at_s))


def test_a_file_that_stays_the_same_is_read_once_and_its_age_grows(tmp_path: Path) -> None:
    put(tmp_path, encode_podlist([ENTRY]), 100.0)
    now = [160.0]
    file = PodlistFile(tmp_path, lambda: now[0])
    with patch("dracaena.exporter.adapters.podlist_file.decode_podlist", wraps=decode_podlist) as decode:
        assert (file.look().entries, file.look().age_s) == ((ENTRY,), 60.0)
        now[0] = 400.0
        assert file.look().age_s == 300.0
        assert decode.call_count == 1


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """The kernel's clock for files ticks: a second write in one tick leaves no sign."""
    other = PodlistEntry("b", "n", "c", ("GPU-0",))
    file = PodlistFile(tmp_path, lambda: 100.001)
    put(tmp_path, encode_podlist([ENTRY]), 100.0)
    assert file.look().entries == (ENTRY,)
    put(tmp_path, encode_podlist([other]), 100.0)
    assert file.look().entries == (other,)


@pytest.mark.parametrize("kind", ["folder", "pipe", "large"])
def test_what_is_no_plain_file_or_too_large_is_unreadable_and_nothing_is_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / PODLIST
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, podlist_file.MOST_BYTES + 1)
    look = PodlistFile(tmp_path).look()
    assert (look.error, look.entries) == ("unreadable", ())
    assert str(path) in look.message


def test_every_cut_of_a_file_is_malformed_and_keeps_the_entries_before(tmp_path: Path) -> None:
    data = encode_podlist([ENTRY])
    file = PodlistFile(tmp_path, lambda: 1000.0)
    put(tmp_path, data, 1.0)
    file.look()
    for length in range(len(data) - 2):
        put(tmp_path, data[:length], 2.0 + length)
        look = file.look()
        assert (look.error, look.entries) == ("malformed", (ENTRY,))
