from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.api.errors import BadInputError
from dracaena.kubelet_plugin.adapters.files.layout_file import MOST_BYTES, LayoutFile
from dracaena.kubelet_plugin.discovery.mig.layouts import Layouts, read_layouts

GOOD = """
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-1g.10gb:
    - device-filter: ["0x233010DE"]
      devices: [0, 1]
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7
"""
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nversion: v1\n"


def layout_file(path: Path) -> LayoutFile[Layouts]:
    return LayoutFile("MIG layouts", str(path), read_layouts)


def test_a_file_of_mig_parted_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert set(layout_file(path).read()) == {"all-disabled", "all-1g.10gb"}


def test_a_file_is_parsed_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD, encoding="utf-8")
    file = layout_file(path)
    first = file.read()
    assert file.read() is first
    path.write_text("version: v1\nmig-configs: {}\n", encoding="utf-8")
    assert file.read() == {}
    path.unlink()
    with pytest.raises(BadInputError, match="No such file"):
        file.read()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\xff", "not YAML"),
        (b"version: [", "not YAML"),
        (b"version: v1\nversion: v1\n", "appears twice"),
        (BOMB.encode(), "alias \\*a, expected each value written out"),
        (b"- &a [*a]", "alias \\*a"),
        (b"[\n" * 1_500, "nested too deeply"),
        (b"version: v1\nmig-configs: 5\n", "mig-configs: a int, expected a map"),
        (b"version: v1 # " + b"x" * MOST_BYTES, "more than 1 MiB"),
        (b"version: !!python/object/apply:os.getcwd []", "not YAML"),
        (b"version: " + b"9" * 5_000, "not YAML|version"),
    ],
)
def test_a_bad_file_is_refused_in_one_short_line_with_its_name(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=words) as caught:
        layout_file(path).read()
    assert str(caught.value).startswith(f"MIG layouts {path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))
