"""Labels of folders that containers mount."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dracaena.api.errors import PermanentError
from dracaena.mps.adapters.selinux import CONTAINER_LABEL, container_label, label_folder
from dracaena.mps.adapters.shared_folder import SharedFolder
from dracaena.mps.planning.places import MpsPlaces

GPU = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("filesystems", "current", "label"),
    [
        ("nodev\tselinuxfs\n\text4\n", "system_u:system_r:spc_t:s0\0", CONTAINER_LABEL),
        ("nodev\tselinuxfs\n", "system_u:system_r:container_t:s0:c1,c2", CONTAINER_LABEL),
        ("nodev\tselinuxfs\n", "kernel", ""),
        ("nodev\tselinuxfs\n", "cri-containerd.apparmor.d (enforce)\n", ""),
        ("nodev\ttmpfs\n", "system_u:system_r:spc_t:s0", ""),
        ("nodev\ttmpfs\n", "unconfined\n", ""),
    ],
)
def test_files_are_labelled_where_selinux_has_a_policy(
    tmp_path: Path, filesystems: str, current: str, label: str
) -> None:
    (tmp_path / "self/attr").mkdir(parents=True)
    (tmp_path / "filesystems").write_text(filesystems)
    (tmp_path / "self/attr/current").write_text(current)
    assert container_label(str(tmp_path)) == label


def test_nothing_is_labelled_where_the_kernel_says_nothing(tmp_path: Path) -> None:
    assert container_label(str(tmp_path)) == ""


def test_pipe_folders_get_the_label_of_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With protocol 3 the daemon makes the folders that containers mount: they inherit the label of their parent."""
    labelled: dict[str, bytes] = {}

    def note(path: str, attribute: str, value: bytes) -> None:
        assert attribute == "security.selinux"
        labelled[path] = value

    monkeypatch.setattr(os, "setxattr", note)
    places = MpsPlaces(str(tmp_path))
    plain = SharedFolder(places)
    plain.prepare()
    plain.make_folders(GPU)
    assert labelled == {}
    folder = SharedFolder(places, label=CONTAINER_LABEL)
    folder.prepare()
    folder.make_folders(GPU)
    assert {places.pipes, places.pipes_of(GPU)} <= labelled.keys()
    assert set(labelled.values()) == {b"system_u:object_r:container_file_t:s0\0"}


def test_a_folder_that_cannot_be_labelled_is_named(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"cannot give .*nowhere the SELinux label system_u"):
        label_folder(str(tmp_path / "nowhere"), CONTAINER_LABEL)
