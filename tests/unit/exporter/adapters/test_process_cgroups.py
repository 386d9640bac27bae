from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.exporter.adapters.process_cgroups import ProcessCgroups, place_in
from dracaena.exporter.series.readings import ProcessPlace

POD = "1f2e3d4c-0000-4000-8000-00000000abcd"
SYSTEMD = POD.replace("-", "_")
CONTAINER = "a1" * 32


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f"0::/kubepods.slice/kubepods-a-pod{SYSTEMD}.slice/cri-containerd-{CONTAINER}.scope", POD),
        (f"0::/kubepods/besteffort/pod{POD}/{CONTAINER}", POD),
        (f"0::/../../../kubepods-pod{SYSTEMD}.slice/crio-{CONTAINER}.scope/container", POD),
        (f"12:cpu:/\n4:memory:/kubepods/pod{POD}/{CONTAINER}\n0::/init.scope", POD),
        (f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice", POD),
        ("0::/system.slice/sshd.service", ""),
        ("", ""),
        ("0::/kubepods/pod12/x", ""),
        (f"0::/{CONTAINER}/kubepods/pod{POD}", POD),
        ("\ufffd::/\ufffd", ""),
    ],
)  # fmt: skip
def test_the_pod_is_found_whatever_names_the_path(cgroup: str, expected: str) -> None:
    assert place_in(cgroup) == ProcessPlace(expected)


def test_a_process_that_has_ended_has_no_place(tmp_path: Path) -> None:
    assert ProcessCgroups(str(tmp_path)).place_of(7) is None


def test_a_process_of_this_machine_is_read() -> None:
    assert ProcessCgroups().place_of(1) is not None
