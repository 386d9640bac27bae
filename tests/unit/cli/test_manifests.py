from __future__ import annotations

import errno
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import BadInputError
from dracaena.cli import manifests
from dracaena.cli.manifests import ManifestError, load_manifests

CLAIM = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: %s}\n"


def write(folder: Path, **texts: str) -> None:
    """Write files; two underlines in a name stand for a dot, three for a folder."""
    for name, text in texts.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def names(*paths: object) -> list[str]:
    return [manifest.object["metadata"]["name"] for manifest in load_manifests([str(path) for path in paths]).objects]


def error_of(*paths: object) -> str:
    with pytest.raises(ManifestError) as caught:
        load_manifests([str(path) for path in paths])
    assert isinstance(caught.value, BadInputError)
    return str(caught.value)


def test_objects_come_with_file_document_and_line(tmp_path: Path) -> None:
    write(tmp_path, a__yaml=f"# first\n{CLAIM % 'one'}---\n---\n{CLAIM % 'two'}")
    one, two = load_manifests([str(tmp_path / "a.yaml")]).objects
    assert (one.source.file, one.source.document, one.source.line) == (str(tmp_path / "a.yaml"), 1, 2)
    assert (two.source.document, two.source.line) == (3, 7)
    assert str(two.source) == f"{tmp_path / 'a.yaml'}:7"
    assert two.source.place.at(("metadata", "name")).line == 9


def test_a_folder_is_read_with_all_below_it_in_order_of_paths(tmp_path: Path) -> None:
    write(
        tmp_path,
        b__yml=CLAIM % "b",
        a___z__yaml=CLAIM % "az",
        a___c___d__json='{"apiVersion": "v1", "kind": "X", "metadata": {"name": "acd"}}',
        c__txt="not: read",
        __hidden__yaml=CLAIM % "hidden",
        __git___x__yaml=CLAIM % "hidden",
    )
    assert names(tmp_path) == ["acd", "az", "b"]


def test_paths_are_read_in_their_order_and_once(tmp_path: Path) -> None:
    write(tmp_path, a__yaml=CLAIM % "a", b__yaml=CLAIM % "b")
    assert names(tmp_path / "b.yaml", tmp_path / "a.yaml", tmp_path / "b.yaml") == ["b", "a"]


def test_lists_are_taken_apart(tmp_path: Path) -> None:
    items = '[{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]'
    write(tmp_path, a__json=f'{{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList",\n "items": {items}}}')
    one, two = load_manifests([str(tmp_path)]).objects
    assert (one.object["kind"], one.object["apiVersion"]) == ("ResourceClaim", "resource.k8s.io/v1")
    assert (two.source.document, two.source.line) == (1, 2)


def test_a_list_of_kubectl_holds_objects_of_any_kind(tmp_path: Path) -> None:
    item = CLAIM.replace("\n", "\n  ") % "a"
    write(tmp_path, a__yaml=f"apiVersion: v1\nkind: List\nitems:\n- {item}\n- {item}")
    assert names(tmp_path) == ["a", "a"]
    assert [each.source.line for each in load_manifests([str(tmp_path)]).objects] == [4, 8]


def test_an_empty_list_is_no_error_next_to_others(tmp_path: Path) -> None:
    write(tmp_path, a__yaml="apiVersion: v1\nkind: List\nitems: []\n---\n" + CLAIM % "a")
    assert names(tmp_path) == ["a"]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((CLAIM % "piped").encode())))
    (manifest,) = load_manifests(["-"]).objects
    assert str(manifest.source) == "standard input:1"


def test_standard_input_that_is_closed_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert error_of("-") == "standard input: is closed, expected Kubernetes objects in YAML or JSON"


def test_a_chart_and_other_files_of_a_folder_are_left_out_and_reported(tmp_path: Path) -> None:
    write(
        tmp_path,
        chart___Chart__yaml="name: x",
        chart___templates___a__yaml="{{ not yaml",
        dashboard__json='{"panels": []}',
        empty__yaml="# nothing\n",
        claim__yaml=CLAIM % "a",
    )
    loaded = load_manifests([str(tmp_path)])
    assert [each.object["metadata"]["name"] for each in loaded.objects] == ["a"]
    assert loaded.left_out == (
        f"{tmp_path}/chart: a Helm chart; read what it renders instead: helm template {tmp_path}/chart | dracaena … -",
        f"{tmp_path}/dashboard.json: contains no Kubernetes object",
        f"{tmp_path}/empty.yaml: contains no Kubernetes object",
    )


BROKEN: list[tuple[str, str]] = [
    ("a: 1\na: 2", ":2:1: key 'a' appears twice (first on line 1), expected once"),
    ("- a\n- b", ":1:1: a list, expected a Kubernetes object (a mapping with apiVersion and kind)"),
    ("just text", ":1:1: 'just text', expected a Kubernetes object"),
    ("5", ":1:1: 5, expected a Kubernetes object"),
    ("kind: X", ":1:1: no apiVersion, expected a Kubernetes object"),
    ("apiVersion: v1\nkind: ''", ":2:1: kind is '', expected text such as ResourceClaim"),
    ("apiVersion: 1\nkind: X", ":1:1: apiVersion is 1, expected text such as resource.k8s.io/v1"),
    ("apiVersion: v1\nkind: List\nitems: {}", ":3:1: items is a mapping, expected a list of objects"),
    ("apiVersion: v1\nkind: List\nitems:\n- 5", ":4:3: 5, expected a Kubernetes object"),
    ("apiVersion: v1\nkind: List\nitems:\n- {kind: X}", ":4:3: no apiVersion, expected a Kubernetes object"),
    (f"{CLAIM % 'a'}---\nx: [", ":6:1: not YAML"),
    ("\x00\x01\x02", ":1:1: control character 0x00, expected text"),
    ("", ": is empty, expected Kubernetes objects in YAML or JSON"),
    ("# only a comment\n---\n", ": is empty"),
    ("[" * 100_000, ":1:101: more than 100 levels"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=[case[1][:30] for case in BROKEN])
def test_what_cannot_be_read_is_one_line_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, a__yaml=text)
    error = error_of(tmp_path / "a.yaml")
    assert error.startswith(f"{tmp_path}/a.yaml{message}")
    assert "\n" not in error


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.yaml", "missing.yaml: cannot be read: No such file or directory, expected a file or folder"),
        ("/dev/null", "/dev/null: is empty, expected Kubernetes objects in YAML or JSON"),
        ("a\x00b", "cannot be read: embedded null byte"),
        ("x" * 5000, "cannot be read: File name too long"),
    ],
)
def test_a_path_that_leads_nowhere_is_one_clear_error(path: str, message: str) -> None:
    assert message in error_of(path)


def test_a_folder_without_manifests_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, a__txt="x", b__json="[]")
    assert (
        error_of(tmp_path) == f"{tmp_path}: no Kubernetes objects in this folder, expected files (.json, .yaml, .yml)"
    )


def test_a_broken_file_in_a_folder_is_named(tmp_path: Path) -> None:
    write(tmp_path, a__yaml=CLAIM % "a", b___c__yaml="a: [")
    assert error_of(tmp_path).startswith(f"{tmp_path}/b/c.yaml:2:1: not YAML")


def test_a_binary_file_is_an_error() -> None:
    assert re.match(r".*:1:\d+: (byte 0x|control character 0x)", error_of(sys.executable))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MOST_BYTES", 1 << 20)
    with (tmp_path / "a.yaml").open("wb") as file:
        file.truncate(1 << 40)
    assert error_of(tmp_path / "a.yaml").endswith("a.yaml: is larger than 1 MiB, expected manifests")


def test_a_file_without_permission_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    write(tmp_path, a__yaml=CLAIM % "a")
    monkeypatch.setattr(Path, "open", refuse)  # root, who runs this at times, may read every file
    assert error_of(tmp_path / "a.yaml").endswith("cannot be read: Permission denied, expected a file or folder")


def test_our_own_manifests_are_read() -> None:
    loaded = load_manifests([str(Path(__file__).parents[3] / "deploy")])
    kinds: set[Any] = {manifest.object["kind"] for manifest in loaded.objects}
    assert {"DeviceClass", "Pod", "ResourceClaim", "ResourceClaimTemplate"} <= kinds


def test_an_empty_path_is_not_the_folder_we_stand_in() -> None:
    with pytest.raises(ManifestError, match="'': is not a path, expected a file or folder"):
        load_manifests([""])
