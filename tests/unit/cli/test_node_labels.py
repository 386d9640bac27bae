from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from dracaena.api.errors import BadInputError, TemporaryError
from dracaena.cli.main import build_parser, main
from dracaena.cli.node_labels import _STRATEGIES, run
from dracaena.kubelet_plugin import live_machine
from dracaena.kubelet_plugin.adapters.recorded_machine import read_machine
from dracaena.kubelet_plugin.discovery.node_labels import MIG_STRATEGIES
from support.sockets import short_folder


class Driver:
    """A machine source whose machine changes, or cannot be read."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def read_all(self) -> SimpleNamespace:
        name = self.names.pop(0)
        if not name:
            raise TemporaryError("the driver is away")
        return SimpleNamespace(machine=read_machine(name))

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
    assert run(arguments, driver, lambda: float(next(times)), wait) == 0  # type: ignore[arg-type]
    families = [labels["nvidia.com/gpu.family"] for labels in seen]
    assert families == ["hopper", "hopper", "hopper", "ada-lovelace"]
    assert len(set(inodes[:3])) == 1, "written again without a change"
    assert {labels["nvidia.com/gfd.timestamp"] for labels in seen} == {"100"}
    assert "the driver is away" in capsys.readouterr().err
    assert not file.exists()


class HangingDriver(Driver):
    """Hangs in its first reading until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = read_machine("hgx-h100")
        self.readings = 0
        self.let_go = threading.Event()

    def read_all(self) -> SimpleNamespace:
        self.readings += 1
        self.let_go.wait()
        return SimpleNamespace(machine=self.machine)


def gpu_driver_threads() -> int:
    return sum(thread.name == "gpu-driver" for thread in threading.enumerate())


def test_while_the_driver_hangs_no_look_starts_anything_and_the_first_after_it_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_machine, "READ_DEADLINE_S", 0.01)
    file = tmp_path / "dracaena"
    arguments = build_parser().parse_args(["node-labels", "--nvml", "--interval", "60", "--output-file", str(file)])
    driver, before = HangingDriver(), gpu_driver_threads()
    looks: list[tuple[int, int]] = []

    def wait(_seconds: float) -> bool:
        looks.append((driver.readings, gpu_driver_threads() - before))
        if len(looks) == 4:
            driver.let_go.set()
        threading.Event().wait(0.001)
        return file.exists()

    try:
        assert run(arguments, driver, wait=wait) == 0  # type: ignore[arg-type]
    finally:
        driver.let_go.set()
    assert looks[:4] == [(1, 1)] * 4
    assert capsys.readouterr().err.count("the NVIDIA driver does not answer: a reading has not returned") >= 4


SIGNALLED_WHILE_IT_READS = """
import os, signal, sys
from types import SimpleNamespace
from dracaena.cli.main import build_parser
from dracaena.cli.node_labels import run
from dracaena.kubelet_plugin.adapters.recorded_machine import read_machine

class Driver:
    def read_all(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return SimpleNamespace(machine=read_machine("hgx-h100"))
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
