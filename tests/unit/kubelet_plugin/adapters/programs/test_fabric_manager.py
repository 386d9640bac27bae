"""Calls of Fabric Manager in processes of their own: real ones, with a library that is played by a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dracaena.kubelet_plugin.adapters.programs import fabric_manager
from dracaena.kubelet_plugin.adapters.programs.fabric_manager import FabricManagerLibrary
from dracaena.kubelet_plugin.ports import FabricCode, FabricManager, FabricManagerError
from support import fake_fabric_manager
from support.fake_fabric_manager import FakeFabricManager, load, save


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "fabric.json"
    save(FakeFabricManager(), made)
    return made


def asked(file: Path, *, call_s: float = 30.0) -> FabricManagerLibrary:
    program = (sys.executable, "-P", fake_fabric_manager.__file__, str(file))
    return FabricManagerLibrary("/run/fm.sock", library="played", program=program, change_s=call_s, talk_s=call_s)


def test_a_partition_is_activated_and_deactivated(file: Path) -> None:
    manager: FabricManager = asked(file)
    manager.activate(3)
    answer = manager.read()
    assert answer.active == {3}
    partition = answer.partition(3)
    assert partition is not None
    assert partition.modules == {1, 3}
    assert [(gpu.address, gpu.nvlinks) for gpu in partition.gpus] == [("", 18), ("", 18)]
    with pytest.raises(FabricManagerError, match="fmActivateFabricPartition says FM_ST_IN_USE") as caught:
        manager.activate(0)
    assert caught.value.code == FabricCode.IN_USE
    manager.deactivate(3)
    with pytest.raises(FabricManagerError, match="FM_ST_UNINITIALIZED") as caught:
        manager.deactivate(3)
    assert caught.value.code == FabricCode.UNINITIALIZED


def test_every_number_of_the_header_is_named(file: Path) -> None:
    for code in range(-29, 0):
        fabric = load(file)
        fabric.fails = {"fmGetSupportedFabricPartitions": code}
        save(fabric, file)
        if code in (-1, -18, -29):  # one process each
            with pytest.raises(FabricManagerError, match=r"fmGetSupportedFabricPartitions says FM_ST_[A-Z_]+$"):
                asked(file).read()
        assert code in fabric_manager._NAMES


def test_a_socket_that_is_not_for_questions_is_told(file: Path) -> None:
    fabric = load(file)
    fabric.fails = {"fmGetSupportedFabricPartitions": -4}
    save(fabric, file)
    with pytest.raises(FabricManagerError, match=r"says FM_ST_UNINITIALIZED\. .*`fabric-manager-address` must be what"):
        asked(file).read()


def test_after_a_restart_it_is_told_what_is_active(file: Path) -> None:
    manager = asked(file)
    fabric = load(file)
    fabric.restart(resuming=True)
    save(fabric, file)
    with pytest.raises(FabricManagerError, match="FM_ST_NOT_CONFIGURED"):
        manager.read()
    manager.set_active([4, 5])
    assert manager.read().active == {4, 5}


def test_a_library_that_hangs_is_ended(file: Path) -> None:
    fabric = load(file)
    fabric.silent = ["fmActivateFabricPartition"]
    save(fabric, file)
    with pytest.raises(FabricManagerError, match=r"asked to activate \[3\], has not answered in 1.5 s") as caught:
        asked(file, call_s=1.5).activate(3)
    assert caught.value.code is None


def test_a_library_that_crashes_or_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    broken = FabricManagerLibrary("/run/fm.sock", library="x", program=("/bin/sh", "-c", "kill -SEGV $$"))
    with pytest.raises(FabricManagerError, match="gave no answer that can be read"):
        broken.read()
    absent = FabricManagerLibrary("/run/fm.sock", program=(str(tmp_path / "nothing"),), library="x")
    with pytest.raises(FabricManagerError, match="no process can be started"):
        absent.read()
    with pytest.raises(FabricManagerError, match=r"cannot be used: .*fmLibInit"):
        FabricManagerLibrary("/run/fm.sock", library="libc.so.6").read()


def test_the_library_is_looked_for_below_the_root_of_the_driver(tmp_path: Path) -> None:
    manager = FabricManagerLibrary("/run/fm.sock", gpu_driver_root=str(tmp_path))
    with pytest.raises(FabricManagerError, match=r"no libnvfm.so.1 below .* name the file in `fabric-manager-library`"):
        manager.read()
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libnvfm.so.1").write_bytes(b"no library")
    with pytest.raises(FabricManagerError, match=r"cannot be used: .*libnvfm.so.1"):
        manager.read()
