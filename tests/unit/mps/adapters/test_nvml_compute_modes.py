"""Compute modes through the real pynvml on a fake library."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from functools import partial

import pynvml
import pytest

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.gpu_driver.use import GpuDriverUse, request_release, withdraw
from dracaena.host.adapters.nvml.library import GpuDriverNotReadyError, NvmlLibrary
from dracaena.host.gpu_driver.permission import GpuDriverPermission
from dracaena.host.paths import PluginPaths, plugin_paths
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.mps.adapters.nvml_compute_modes import NvmlComputeModes
from dracaena.mps.planning.state import ComputeMode
from dracaena.mps.ports import DriverReleasedError
from support.fake_compute_modes import FakeNvmlWithModes

MACHINE = read_machine("hgx-h100")
UUIDS = [gpu.uuid for gpu in MACHINE.gpus]


class Ground:
    def __init__(self) -> None:
        self.nvml = FakeNvmlWithModes(MACHINE)
        self.modes = NvmlComputeModes(NvmlLibrary(lambda: self.nvml))


def test_modes_are_set_and_read_gpu_by_gpu() -> None:
    ground = Ground()
    ground.modes.set(UUIDS[1], ComputeMode.EXCLUSIVE_PROCESS)
    assert ground.modes.read(UUIDS[:2]) == {UUIDS[0]: ComputeMode.DEFAULT, UUIDS[1]: ComputeMode.EXCLUSIVE_PROCESS}
    assert ground.nvml.modes[1] == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


def test_nvml_is_open_only_while_it_is_asked() -> None:
    ground = Ground()
    ground.modes.read(UUIDS)
    ground.modes.set(UUIDS[0], ComputeMode.DEFAULT)
    ground.nvml.lost = {0}
    with pytest.raises(TemporaryError):
        ground.modes.set(UUIDS[0], ComputeMode.DEFAULT)
    assert ground.nvml.opened == 0


def test_a_gpu_that_does_not_answer_is_said_in_words_beside_those_that_do() -> None:
    """With one GPU off the bus NVML finds none by UUID."""
    ground = Ground()
    ground.nvml.lost = {0}
    ground.modes.set(UUIDS[2], ComputeMode.EXCLUSIVE_PROCESS)
    assert ground.nvml.modes[2] == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    unknown = "GPU-00000000-0000-0000-0000-000000000000"
    told = ground.modes.read([UUIDS[0], UUIDS[1], unknown])
    assert told[UUIDS[1]] is ComputeMode.DEFAULT
    assert "fallen off the bus" in str(told[UUIDS[0]])
    assert "fallen off the bus" in str(told[unknown]), "whether it is the lost one is not known"
    ground.nvml.lost.clear()
    assert "does not know it (NOT_FOUND)" in str(ground.modes.read([unknown])[unknown])


def test_a_mode_that_there_is_not_is_said() -> None:
    ground = Ground()
    ground.nvml.modes[0] = 9
    assert ground.modes.read(UUIDS[:1]) == {UUIDS[0]: "the GPU driver says compute mode 9, expected 0 to 3"}


def test_a_refusal_names_the_gpu_the_mode_and_who_must_act() -> None:
    ground = Ground()
    ground.nvml.refuse("nvmlDeviceSetComputeMode", pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(TemporaryError, match=rf"{UUIDS[0]} cannot be set to EXCLUSIVE_PROCESS: only root may set it"):
        ground.modes.set(UUIDS[0], ComputeMode.EXCLUSIVE_PROCESS)


def test_without_a_driver_every_gpu_says_what_is_waited_for() -> None:
    def load() -> object:
        raise GpuDriverNotReadyError("waiting for the NVIDIA driver: no library")

    modes = NvmlComputeModes(NvmlLibrary(load))
    assert modes.read(UUIDS[:2]) == dict.fromkeys(sorted(UUIDS[:2]), "waiting for the NVIDIA driver: no library")


@pytest.fixture
def paths() -> Iterator[PluginPaths]:
    """pytest's own folders are too long for the plugin's sockets."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        paths = plugin_paths(folder, "gpu.dracaena.dev", "")
        paths.release_request.parent.mkdir(parents=True)
        yield paths


def test_without_a_gpu_to_ask_for_nvml_is_not_opened() -> None:
    loaded = []
    modes = NvmlComputeModes(NvmlLibrary(lambda: loaded.append(1)))
    assert modes.read([]) == {}
    assert loaded == []


def test_while_the_driver_is_released_nvml_is_not_opened_and_the_one_who_asked_is_named(paths: PluginPaths) -> None:
    loaded, nvml = [], FakeNvmlWithModes(MACHINE)

    def load() -> object:
        loaded.append(1)
        return nvml

    use = GpuDriverUse(paths.gpu_driver_lock, paths.release_request)
    permission = GpuDriverPermission(use, paths.release_labels)
    modes = NvmlComputeModes(NvmlLibrary(load, permission=permission), permission)
    request_release(paths.release_request, "update")
    assert "requested on this node: update" in str(modes.refusal())
    for ask in (partial(modes.read, UUIDS), partial(modes.set, UUIDS[0], ComputeMode.DEFAULT)):
        with pytest.raises(TemporaryError, match="requested on this node: update"):
            ask()
    withdraw(paths.release_request)
    paths.release_labels.write_text('{"gpu.dracaena.dev/release-driver": "true"}\n')
    with pytest.raises(DriverReleasedError, match="requested by labels of this node"):
        modes.read(UUIDS)
    assert loaded == []
    paths.release_labels.unlink()
    assert modes.refusal() is None
    assert modes.read(UUIDS[:1]) == {UUIDS[0]: ComputeMode.DEFAULT}


def test_a_request_that_waits_for_the_lock_is_obeyed(paths: PluginPaths) -> None:
    """`dracaena driver release` holds the lock exclusively once nobody has the driver open."""
    permission = GpuDriverPermission(GpuDriverUse(paths.gpu_driver_lock, paths.release_request))
    modes = NvmlComputeModes(NvmlLibrary(lambda: FakeNvmlWithModes(MACHINE), permission=permission), permission)
    with paths.gpu_driver_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DriverReleasedError, match="another process of this node waits"):
            modes.read(UUIDS)
