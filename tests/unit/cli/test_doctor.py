from __future__ import annotations

import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dracaena.api.errors import BadInputError
from dracaena.cli.doctor import write_bundle

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)


def test_a_bundle_is_an_archive_that_only_its_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    write_bundle(str(path), {"about.json": b"{}", "nodes.json": b"[]"}, NOW)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["dracaena/about.json", "dracaena/nodes.json"]
        content = archive.extractfile("dracaena/about.json")
        assert content is not None
        assert content.read() == b"{}"
        assert {(one.mtime, one.mode, one.uname) for one in archive.getmembers()} == {(NOW.timestamp(), 0o600, "")}


@pytest.mark.parametrize("name", ["there.tar.gz", "no/such/folder.tar.gz"])
def test_a_bundle_overwrites_nothing_and_says_why_it_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "there.tar.gz").write_bytes(b"before")
    with pytest.raises(BadInputError, match=r"cannot be written: .*, expected the name of a new file"):
        write_bundle(str(tmp_path / name), {}, NOW)
    assert (tmp_path / "there.tar.gz").read_bytes() == b"before"
