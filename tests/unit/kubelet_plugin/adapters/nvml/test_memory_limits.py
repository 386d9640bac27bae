"""Memory limits through the real pynvml, on a library that keeps to what NVIDIA documents of driver R615."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.host.facts.troubles import GpuDriverReleasedError
from dracaena.kubelet_plugin.adapters.nvml.memory_limits import NvmlMemoryLimits
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError
from support.fake_memory_limits import DMEM, MISC, NONE_BYTES, OFF, CgroupTree, MemoryLimitingNvml

MACHINE = read_machine("hgx-h100")
GPU = MACHINE.gpus[0].uuid


class Ground:
    def __init__(self, folder: Path, mode: int) -> None:
        self.nvml = MemoryLimitingNvml(MACHINE, mode)
        self.tree = CgroupTree(folder / "cgroup", dmem=mode == DMEM)
        self.pod = self.tree.add("pod-uid")
        self.library = NvmlLibrary(lambda: self.nvml)
        self.limits = NvmlMemoryLimits(self.library, stays_open=False)

    def set(self, limit_bytes: int | None = 1 << 30) -> None:
        self.limits.set(GPU, str(self.pod), limit_bytes)

    def now(self) -> tuple[int, int] | None:
        return self.nvml.limits.get((0, str(self.pod)))


@pytest.fixture
def ground(tmp_path: Path, mode: int) -> Iterator[Ground]:
    ground = Ground(tmp_path, mode)
    yield ground
    ground.library.close()


BOTH = pytest.mark.parametrize("mode", [MISC, DMEM])
ANY = pytest.mark.parametrize("mode", [MISC])


@BOTH
def test_memory_is_limited_and_kept_and_both_are_taken_back(ground: Ground) -> None:
    ground.set()
    assert ground.now() == (1 << 30, 1 << 30)
    ground.set(None)
    assert ground.now() == (0, NONE_BYTES)
    assert set(ground.nvml.kept.values()) <= {0}, "the cgroups above keep nothing for a pod that ends"
    assert not ground.library.is_open


@ANY
@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, TemporaryError, "INVALID_ARGUMENT"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, NotOfferedError, "RmMemacctMode=0; load it without that"),
        (pynvml.NVML_ERROR_NO_PERMISSION, NotOfferedError, "must run privileged"),
        (pynvml.NVML_ERROR_NOT_FOUND, NotOfferedError, "`\\+dmem` into cgroup.subtree_control of every folder above"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, GpuGoneError, "GPU_IS_LOST"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, GpuGoneError, "DRIVER_NOT_LOADED"),
        (pynvml.NVML_ERROR_UNKNOWN, TemporaryError, "UNKNOWN"),
    ],
)
def test_each_code_says_what_is_wrong_and_who_must_act(
    ground: Ground, code: int, kind: type[Exception], words: str
) -> None:
    ground.nvml.refuse("nvmlDeviceSetMemoryLimits_v1", code)
    with pytest.raises(kind, match=words) as caught:
        ground.set()
    assert type(caught.value) is kind
    assert GPU in str(caught.value)
    assert str(ground.pod) in str(caught.value)


@pytest.mark.parametrize("mode", [OFF])
def test_a_driver_that_counts_no_memory_is_named(ground: Ground) -> None:
    with pytest.raises(NotOfferedError, match="no memory limits"):
        ground.set()


@pytest.mark.parametrize("mode", [DMEM])
def test_a_cgroup_without_the_controllers_files_is_named(ground: Ground) -> None:
    (ground.pod / "dmem.max").unlink()
    with pytest.raises(NotOfferedError, match="that cgroup has no dmem files"):
        ground.set()


@ANY
def test_an_older_driver_does_not_have_the_call(ground: Ground) -> None:
    ground.nvml.missing.add("nvmlDeviceSetMemoryLimits_v1")
    with pytest.raises(NotOfferedError, match="came with R615"):
        ground.set()


@ANY
def test_who_is_not_root_is_told_so(ground: Ground) -> None:
    ground.nvml.is_root = False
    with pytest.raises(NotOfferedError, match="only root may set memory limits"):
        ground.set()


@ANY
def test_a_gpu_that_the_driver_does_not_know_is_gone(ground: Ground) -> None:
    with pytest.raises(GpuGoneError, match="does not know GPU-other"):
        ground.limits.set("GPU-other", str(ground.pod), 1)


@ANY
def test_beside_a_lost_gpu_the_others_are_limited(ground: Ground) -> None:
    """With one GPU off the bus NVML finds none by UUID."""
    ground.nvml.lost = {3}
    ground.set()
    assert ground.now() == (1 << 30, 1 << 30)
    with pytest.raises(GpuGoneError, match="GPU_IS_LOST"):
        ground.limits.set(MACHINE.gpus[3].uuid, str(ground.pod), 1 << 30)


@ANY
def test_a_limit_that_is_taken_and_not_shown_is_tried_again(ground: Ground) -> None:
    ground.nvml.refuse("nvmlDeviceSetMemoryLimits_v1", pynvml.NVML_SUCCESS)
    ground.nvml.limits[0, str(ground.pod)] = (0, NONE_BYTES)
    with pytest.raises(TemporaryError, match="shows none"):
        ground.set()


@ANY
def test_a_driver_that_is_let_go_of_is_not_opened(ground: Ground) -> None:
    class Released:
        def refusal(self) -> str | None:
            return "an update"

        def enter(self) -> None:
            raise GpuDriverReleasedError("an update")

        def leave(self) -> None:
            raise AssertionError("never entered")

    library = NvmlLibrary(lambda: ground.nvml, permission=Released())
    with pytest.raises(GpuGoneError, match="an update"):
        NvmlMemoryLimits(library, stays_open=True).set(GPU, str(ground.pod), 1)
    assert ground.nvml.calls == []


@ANY
def test_nvml_stays_open_where_others_have_it_open(ground: Ground) -> None:
    ground.library.open()
    ground.set()
    assert ground.library.is_open
