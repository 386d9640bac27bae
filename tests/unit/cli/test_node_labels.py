from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dracaena.api.errors import BadInputError, TemporaryError
from dracaena.api.machine import Machine
from dracaena.cli.main import build_parser, main
from dracaena.cli.node_labels import _STRATEGIES, run
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.host.facts.machine import LeftOut
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.machine import GuestBuses, NvmlMachine
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.discovery.publish.node_labels import MIG_STRATEGIES
from dracaena.kubelet_plugin.node import live_machine
from support.fake_nvml import FakeNvml
from support.fake_pci import FakePciBus
from support.fake_sysfs import write_machine
from support.fake_vgpu import A100_TYPES, FakeVgpus
from support.kube import wait_for
from support.sockets import short_folder


class Driver:
    """A machine source whose machine changes, or cannot be read."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def read_all(self) -> Reading:
        name = self.names.pop(0)
        if not name:
            raise TemporaryError("the driver is away")
        return Reading(read_machine(name))

    def doing(self) -> str:
        return ""

    def close(self) -> None:
        pass


def test_a_recorded_machine_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node-labels", "--machine", "hgx-h100", "--no-timestamp"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3" in lines
    assert lines == sorted(lines)


def test_the_strategies_are_those_of_the_labels() -> None:
    assert _STRATEGIES == MIG_STRATEGIES


def test_the_file_follows_the_machine_and_goes_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "features.d" / "dracaena"
    arguments = build_parser().parse_args(["node-labels", "--nvml", "--interval", "60", "--output-file", str(file)])
    seen: list[dict[str, str]] = []
    inodes = []

    def wait(seconds: float) -> bool:
        assert seconds == 60
        seen.append(dict(line.split("=", 1) for line in file.read_text().splitlines()))
        inodes.append(file.stat().st_ino)
        return len(seen) == 4

    driver = Driver("hgx-h100", "hgx-h100", "", "rtx4090-all-sys")
    times = iter(range(100, 200))
    assert run(arguments, driver, lambda: float(next(times)), wait) == 0
    families = [labels["nvidia.com/gpu.family"] for labels in seen]
    assert families == ["hopper", "hopper", "hopper", "ada-lovelace"]
    assert len(set(inodes[:3])) == 1, "written again without a change"
    assert {labels["nvidia.com/gfd.timestamp"] for labels in seen} == {"100"}
    assert "the driver is away" in capsys.readouterr().err
    assert not file.exists()


WHOLE = Reading(read_machine("hgx-h100"))
LOST = LeftOut("GPU 3", "nvmlDeviceGetHandleByIndex", "GPU_IS_LOST")


def first_gpus(machine: Machine, count: int) -> Machine:
    return replace(machine, gpus=machine.gpus[:count])


WITHOUT_ONE = Reading(
    first_gpus(WHOLE.machine, 7), (LeftOut("GPU 0", "nvmlDeviceGetPowerUsage", "NOT_SUPPORTED"), LOST)
)


class ReadDriver(Driver):
    """Gives these readings, the last one again and again."""

    def __init__(self, *readings: Reading) -> None:
        super().__init__()
        self.readings = list(readings)

    def read_all(self) -> Reading:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


def counts(file: Path, looks: int, *readings: Reading) -> list[str | None]:
    """What the file says of the number of GPUs after each of these looks, one a minute."""
    arguments = build_parser().parse_args(["node-labels", "--nvml", "--interval", "60", "--output-file", str(file)])
    seen: list[str | None] = []

    def wait(_seconds: float) -> bool:
        lines = file.read_text().splitlines() if file.exists() else []
        seen.append(dict(line.split("=", 1) for line in lines).get("nvidia.com/gpu.count"))
        return len(seen) == looks

    assert run(arguments, ReadDriver(*readings), wait=wait) == 0
    return seen


def test_labels_stay_while_the_driver_tells_a_part_only_and_this_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = counts(tmp_path / "f", 6, WHOLE, WITHOUT_ONE, WITHOUT_ONE, WHOLE, WITHOUT_ONE, WHOLE)
    assert seen == ["8"] * 6
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3
    assert "labels stay as they are" in told[0]
    assert f"questions unanswered: 1 (first: {LOST})" in told[0]


def test_a_gpu_that_stays_lost_for_five_minutes_no_longer_counts(tmp_path: Path) -> None:
    changed = Reading(first_gpus(WHOLE.machine, 6), WITHOUT_ONE.left_out)
    worse = Reading(first_gpus(WHOLE.machine, 5), (*WITHOUT_ONE.left_out, LOST))
    looks = (WHOLE, *[WITHOUT_ONE] * 6, changed, worse, *[WHOLE] * 2)
    assert counts(tmp_path / "f", 11, *looks) == [*["8"] * 6, "7", "6", "6", "8", "8"]


def test_a_node_that_starts_with_a_lost_gpu_gets_the_labels_of_the_others(tmp_path: Path) -> None:
    assert counts(tmp_path / "f", 7, WITHOUT_ONE) == [*[None] * 5, "7", "7"]


def test_a_part_of_the_labels_is_not_written_by_a_command_that_looks_once(tmp_path: Path) -> None:
    file = tmp_path / "f"
    arguments = build_parser().parse_args(["node-labels", "--nvml", "--output-file", str(file)])
    with pytest.raises(TemporaryError, match="none is written: try again"):
        run(arguments, ReadDriver(WITHOUT_ONE))
    assert not file.exists()
    assert run(arguments, ReadDriver(WHOLE)) == 0
    assert "nvidia.com/gpu.count=8" in file.read_text()


@pytest.fixture
def vfio_bus(tmp_path: Path) -> FakePciBus:
    bus = FakePciBus(tmp_path / "sys")
    for number in (1, 2):
        bus.add(f"0000:e{number}:00.0", number, driver="vfio-pci")
    return bus


def test_where_vfio_drivers_and_the_vgpu_manager_have_all_gpus_labels_go_though_no_nvidia_driver_is_left(
    vfio_bus: FakePciBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_this_node = NvmlMachine.of_this_node
    monkeypatch.setattr(NvmlMachine, "of_this_node", partial(of_this_node, sys_root=str(vfio_bus.root)))
    file, nothing = tmp_path / "f", tmp_path / "no-driver"
    command = ["node-labels", "--nvml", "--driver-root", str(nothing), "--output-file", str(file)]
    for made in (lambda: None, lambda: FakeVgpus(vfio_bus).add_gpu("0000:d1:00.0", A100_TYPES)):
        made()
        file.write_text("nvidia.com/gpu.count=2\n", encoding="utf-8")
        assert main(command) == 0, capsys.readouterr().err
        assert file.read_text() == ""

    vfio_bus.add("0000:f1:00.0", 9, driver="nvidia")
    assert main(command) != 0
    assert "driver-root" in capsys.readouterr().err


def test_gpus_for_virtual_machines_are_not_counted(vfio_bus: FakePciBus, tmp_path: Path) -> None:
    recorded, root = read_machine("a100-pcie-pairs-cross-numa"), vfio_bus.root
    write_machine(root, recorded)
    command = ["node-labels", "--nvml", "--no-timestamp", "--output-file", str(tmp_path / "f")]
    said = []
    for bus in (None, SysfsPci(str(root))):
        library = NvmlLibrary(lambda: FakeNvml(recorded))
        source = NvmlMachine("node", NvmlReader(library), Sysfs(str(root)), guests=GuestBuses(bus))
        assert run(build_parser().parse_args(command), source) == 0
        said.append((tmp_path / "f").read_text())
    assert said[0] == said[1]
    assert f"nvidia.com/gpu.count={len(recorded.gpus)}\n" in said[1]


class HangingDriver(Driver):
    """Hangs in its first reading until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = read_machine("hgx-h100")
        self.readings = 0
        self.let_go = threading.Event()

    def read_all(self) -> Reading:
        self.readings += 1
        self.let_go.wait()
        return Reading(self.machine)


def gpu_driver_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "gpu-driver"}


def test_while_the_driver_hangs_no_look_starts_anything_and_the_first_after_it_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_machine, "READ_DEADLINE_S", 0.01)
    file = tmp_path / "dracaena"
    arguments = build_parser().parse_args(["node-labels", "--nvml", "--interval", "60", "--output-file", str(file)])
    driver, before = HangingDriver(), gpu_driver_threads()
    looks: list[tuple[int, int]] = []

    def wait(_seconds: float) -> bool:
        wait_for(lambda: driver.readings, "the reading, which may begin after its deadline")
        looks.append((driver.readings, len(gpu_driver_threads() - before)))
        if len(looks) == 4:
            driver.let_go.set()
        threading.Event().wait(0.001)
        return file.exists()

    try:
        assert run(arguments, driver, wait=wait) == 0
    finally:
        driver.let_go.set()
    assert looks[:4] == [(1, 1)] * 4
    assert capsys.readouterr().err.count("the NVIDIA driver does not answer: a reading has not returned") >= 4


SIGNALLED_WHILE_IT_READS = """
import os, signal, sys
from dracaena.cli.main import build_parser
from dracaena.cli.node_labels import run
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.discovery.build import Reading

class Driver:
    def read_all(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return Reading(read_machine("hgx-h100"))
    def doing(self):
        return ""
    def close(self):
        print("closed")

command = ["node-labels", "--nvml", "--interval", "3600", "--output-file", sys.argv[1]]
sys.exit(run(build_parser().parse_args(command), Driver()))
"""


def test_a_signal_while_the_driver_is_read_ends_the_command_in_order(tmp_path: Path) -> None:
    """In a process of its own: the kernel gives a signal of a process to any thread that does not hold it."""
    file = tmp_path / "features"
    file.write_text("nvidia.com/gpu.count=8\n", encoding="utf-8")
    command = [sys.executable, "-P", "-c", SIGNALLED_WHILE_IT_READS, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
    assert not file.exists()


def test_an_interval_needs_a_place_to_write_to() -> None:
    arguments = build_parser().parse_args(["node-labels", "--machine", "hgx-h100", "--interval", "1"])
    with pytest.raises(BadInputError, match="--output-file or --patch-node"):
        run(arguments)


def test_the_driver_is_left_alone_while_somebody_asks_for_that(capsys: pytest.CaptureFixture[str]) -> None:
    with short_folder() as root:
        data = root / "plugins" / "gpu.dracaena.dev"
        data.mkdir(parents=True)
        (data / "release-driver").write_text("the driver is upgraded\n", encoding="utf-8")
        assert main(["node-labels", "--nvml", "--kubelet-root", str(root)]) != 0
    assert "the driver is upgraded" in capsys.readouterr().err
