from __future__ import annotations

import pytest

from dracaena.api.names import PodUid
from dracaena.host.facts.pod_cgroups import pod_cgroups, pod_of_cgroup

POD = "1f2e3d4c-0000-4000-8000-00000000abcd"
SYSTEMD = POD.replace("-", "_")
STATIC = "0123456789abcdef" * 2
CONTAINER = "a1" * 32


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f"0::/kubepods.slice/kubepods-a-pod{SYSTEMD}.slice/cri-containerd-{CONTAINER}.scope", POD),
        (f"0::/kubepods/besteffort/pod{POD}/{CONTAINER}", POD),
        (f"0::/../../../kubepods-pod{SYSTEMD}.slice/crio-{CONTAINER}.scope/container", POD),
        (f"12:cpu:/\n4:memory:/kubepods/pod{POD}/{CONTAINER}\n0::/init.scope", POD),
        (f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice", POD),
        ("0::/system.slice/sshd.service", None),
        ("", None),
        (f"0::/kubepods/burstable/pod{STATIC}/{CONTAINER}", STATIC),
        ("0::/kubepods/pod12/x", None),
        (f"0::/{CONTAINER}/kubepods/pod{POD}", POD),
        ("\ufffd::/\ufffd", None),
    ],
)  # fmt: skip
def test_the_pod_is_found_whatever_names_the_path(cgroup: str, expected: str | None) -> None:
    assert pod_of_cgroup(cgroup) == expected


@pytest.mark.parametrize("uid", [POD, STATIC])
def test_each_cgroup_that_kubelet_may_give_a_pod_names_that_pod(uid: str) -> None:
    paths = list(pod_cgroups(PodUid(uid)))
    assert len(paths) == 6
    assert {pod_of_cgroup(f"0::/{path}/cri-containerd-{CONTAINER}.scope") for path in paths} == {uid}
