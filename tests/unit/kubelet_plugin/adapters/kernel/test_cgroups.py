from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.api.names import PodUid
from dracaena.host.facts.pod_cgroups import pod_cgroups
from dracaena.kubelet_plugin.adapters.kernel.cgroups import Cgroups
from support.fake_memory_limits import CgroupTree

UID = PodUid("0c1e2d3f-0000-4000-8000-00000000000a")


@pytest.mark.parametrize("kind", range(6))
def test_a_pod_is_found_wherever_kubelet_puts_it(tmp_path: Path, kind: int) -> None:
    tree = CgroupTree(tmp_path / "cgroup", kind)
    cgroups = Cgroups(str(tree.root))
    assert cgroups.problem() is None
    assert cgroups.of_pod(UID) is None
    path = tree.add(UID)
    assert cgroups.of_pod(UID) == str(path)
    tree.remove(UID)
    assert cgroups.of_pod(UID) is None


def test_the_paths_are_those_of_kubelet() -> None:
    slice_uid = UID.replace("-", "_")
    assert list(pod_cgroups(UID)) == [
        f"kubepods.slice/kubepods-pod{slice_uid}.slice",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice_uid}.slice",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{slice_uid}.slice",
        f"kubepods/pod{UID}",
        f"kubepods/burstable/pod{UID}",
        f"kubepods/besteffort/pod{UID}",
    ]


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "x" * 64])
def test_what_is_no_uid_names_no_folder(tmp_path: Path, uid: str) -> None:
    tree = CgroupTree(tmp_path / "cgroup")
    assert Cgroups(str(tree.root)).of_pod(PodUid(uid)) is None


def test_other_trees_say_who_must_act(tmp_path: Path) -> None:
    assert "start the node with cgroup v2" in (Cgroups(str(tmp_path)).problem() or "")
    (tmp_path / "cgroup.controllers").touch()
    assert "cgroupsPerQOS must be true" in (Cgroups(str(tmp_path)).problem() or "")
