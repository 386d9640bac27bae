"""nvidia-smi as a process: a stand-in that keeps to the exit codes of its manual."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.gpu_driver.use import GpuDriverUse, lent, request_release
from dracaena.kubelet_plugin.adapters.programs.nvidia_smi import NvidiaSmi
from dracaena.kubelet_plugin.gpu_driver.release import GpuDriverRelease
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError
from support.clock import FakeClock
from support.fake_nvidia_smi import LIBRARY, NvidiaSmiRoot
from support.plugin import DRIVER

GPU = "GPU-1"


class Ground:
    def __init__(self, folder: Path, *, answer_s: float = 60.0) -> None:
        self.fake = NvidiaSmiRoot(folder, GPU)
        self.lock, self.request = folder / "lock", folder / "request"
        release = GpuDriverRelease(DRIVER, lambda: GpuDriverUse(self.lock, self.request))
        self.smi = NvidiaSmi(str(self.fake.root), in_use=release.in_program, answer_s=answer_s)


def test_every_interval_is_set_and_read(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    assert ground.smi.missing() is None
    for interval in TimeSliceInterval:
        ground.smi.set(GPU, interval)
        assert ground.fake.interval(GPU) == interval.value
        assert ground.smi.read(GPU) is interval
    assert ground.fake.calls()[-2] == f"compute-policy -i {GPU} --set-timeslice=3|{ground.fake.root}{LIBRARY}"


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (2, NotOfferedError, "came with R455"),
        (3, NotOfferedError, "this product has no time slices"),
        (4, NotOfferedError, "must run privileged"),
        (6, GpuGoneError, "it says why"),
        (9, GpuGoneError, "it says why"),
        (13, NotOfferedError, "too old"),
        (15, GpuGoneError, "it says why"),
        (255, TemporaryError, "it says why"),
    ],
)
def test_each_exit_code_says_who_must_act(tmp_path: Path, code: int, kind: type[Exception], words: str) -> None:
    ground = Ground(tmp_path)
    ground.fake.fails(code, "it says why")
    with pytest.raises(kind, match=words) as caught:
        ground.smi.set(GPU, TimeSliceInterval.LONG)
    assert type(caught.value) is kind
    assert f"(exit code {code})" in str(caught.value) or f"exit code {code})" in str(caught.value)


def test_a_gpu_that_is_not_there_is_gone(tmp_path: Path) -> None:
    with pytest.raises(GpuGoneError, match="No devices were found"):
        Ground(tmp_path).smi.read("GPU-2")


def test_a_driver_without_the_program_says_where_it_was_looked_for(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    (ground.fake.root / "usr/bin/nvidia-smi").unlink()
    assert "no nvidia-smi below" in (ground.smi.missing() or "")
    with pytest.raises(NotOfferedError, match="install the NVIDIA driver with its utilities"):
        ground.smi.read(GPU)


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    ground = Ground(tmp_path, answer_s=0.05)
    (ground.fake.state / "hangs").touch()
    with pytest.raises(TemporaryError, match="does not answer within"):
        ground.smi.read(GPU)


def test_a_driver_that_is_lent_for_some_seconds_is_not_gone(tmp_path: Path) -> None:
    """What was set is still set then: it has to be undone later, and does not go with the driver."""
    ground = Ground(tmp_path)
    with lent(ground.lock, FakeClock(), 0), pytest.raises(TemporaryError, match="closed for a while") as caught:
        ground.smi.set(GPU, TimeSliceInterval.DEFAULT)
    assert not isinstance(caught.value, GpuGoneError)
    assert not (ground.fake.state / "calls").exists()
    ground.smi.set(GPU, TimeSliceInterval.DEFAULT)


def test_whoever_wants_the_driver_closed_comes_first(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    request_release(ground.request, "it is being updated")
    with pytest.raises(GpuGoneError, match="being updated"):
        ground.smi.read(GPU)
    assert not (ground.fake.state / "calls").exists()
    assert GpuDriverUse(ground.lock, ground.request).enter(), "nothing of ours holds the driver"
