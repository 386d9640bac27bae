"""The adapter on plain files: what it reads and writes, in whose name, and what it makes of a write that hangs."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
from pathlib import Path

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.sysfs.driver_files import PciDriverFiles
from dracaena.kubelet_plugin.ports import WriteHangsError
from support.fake_pci import FakePciBus

GPU = "0000:18:00.0"
OVERRIDE = f"bus/pci/devices/{GPU}/driver_override"


@pytest.fixture
def bus(tmp_path: Path) -> FakePciBus:
    made = FakePciBus(tmp_path / "sys")
    made.add(GPU, 7, driver="nvidia")
    return made


def files(bus: FakePciBus, **given: float) -> PciDriverFiles:
    folder = bus.root.parent
    return PciDriverFiles(folder / "locks", str(bus.root), modules=str(folder / "modules"), **given)


def test_a_write_is_one_of_the_whole_text_to_a_file_that_is_there(bus: FakePciBus) -> None:
    made = files(bus)
    made.write(GPU, OVERRIDE, "igb\n")
    assert (bus.root / OVERRIDE).read_text() == "igb\nl)\n", "a plain file keeps its rest: it is not emptied first"
    with pytest.raises(OSError, match="No such file") as caught:
        made.write(GPU, "bus/pci/drivers/nvidia/unbind", GPU)
    assert caught.value.errno == errno.ENOENT
    assert not (bus.root / "bus/pci/drivers/nvidia/unbind").exists()


def test_the_kernels_refusal_comes_with_its_number(bus: FakePciBus) -> None:
    with pytest.raises(OSError, match="Is a directory") as caught:
        files(bus).write(GPU, "bus/pci/drivers", "x")
    assert caught.value.errno == errno.EISDIR
    full = bus.root / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        files(bus).write(GPU, "full", "x")
    assert caught.value.errno == errno.ENOSPC


def test_a_write_that_does_not_return_is_ended(bus: FakePciBus) -> None:
    os.mkfifo(bus.root / "hangs")  # open() waits for a reader
    made = files(bus, write_s=0.2)
    with pytest.raises(TemporaryError, match=r"writing 'x' to .*/hangs took 0.2 s and was ended") as caught:
        made.write(GPU, "hangs", "x")
    assert not isinstance(caught.value, WriteHangsError)
    assert not made.is_writing(GPU)


def test_while_the_process_of_an_earlier_write_is_there_nothing_else_is_written_for_that_gpu(bus: FakePciBus) -> None:
    made = files(bus)
    made.write(GPU, OVERRIDE, "")
    left = os.open(bus.root.parent / "locks" / f"{GPU}.lock", os.O_RDWR)
    try:
        fcntl.flock(left, fcntl.LOCK_EX)  # as the child has it, whoever began it
        assert made.is_writing(GPU)
        with pytest.raises(WriteHangsError, match=f"an earlier write for the GPU at {GPU} has not ended"):
            made.write(GPU, OVERRIDE, "vfio-pci")
        assert not made.is_writing("0000:19:00.0")
    finally:
        os.close(left)
    assert not made.is_writing(GPU)
    assert (bus.root / OVERRIDE).read_text() == "(null)\n"


@pytest.mark.parametrize(
    ("module", "driver"),
    [("vfio_pci", "vfio-pci"), ("nvgrace_gpu_vfio_pci", "nvgrace_gpu_vfio_pci"), ("mlx5_vfio_pci", "mlx5_vfio_pci")],
)
@pytest.mark.parametrize("links", [True, False], ids=["loaded", "built in"])
def test_the_driver_of_a_module_is_the_one_that_the_kernel_has_registered(
    bus: FakePciBus, module: str, driver: str, *, links: bool
) -> None:
    aliases = bus.root.parent / "modules" / platform.release() / "modules.alias"
    aliases.parent.mkdir(parents=True)
    aliases.write_text(f"alias vfio_pci:v000010DEd00002330sv*sd*bc*sc*i* {module}\n")
    assert files(bus).vfio_driver(GPU).name is None
    bus.load(module)
    (bus.root / "module" / module / "drivers/pci:another").symlink_to("../../../bus/pci/drivers/nvidia")
    if not links:
        shutil.rmtree(bus.root / "module" / module)
    assert files(bus).vfio_driver(GPU).name == driver


def test_what_is_read_is_what_the_kernel_says(bus: FakePciBus) -> None:
    made = files(bus)
    assert made.override(GPU) is None
    bus.write(OVERRIDE, "vfio-pci")
    assert made.override(GPU) == "vfio-pci"
    assert made.override("0000:99:00.0") is None
    assert made.is_loaded("nvidia")
    assert not made.is_loaded("vfio-pci")
    assert made.vfio_driver(GPU).module == "vfio_pci"
    aliases = bus.root.parent / "modules" / platform.release() / "modules.alias"
    aliases.parent.mkdir(parents=True)
    aliases.write_text("alias vfio_pci:v000010DEd00002330sv*sd*bc*sc*i* some_vfio_pci\n")
    assert (made.vfio_driver(GPU).module, made.vfio_driver(GPU).name) == ("some_vfio_pci", None)
    assert [str(address) for address in made.read().functions] == [GPU]
    assert not made.has_iommufd()
    (bus.root / "class/misc/iommu").mkdir(parents=True)
    assert made.has_iommufd()
