"""`dracaena topology record`: what it writes, and what it says without a driver."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pynvml
import pytest

from dracaena.api.errors import BadInputError, PermanentError
from dracaena.api.machine_json import decode_machine
from dracaena.cli import record, topology
from dracaena.host.adapters.nvml.library import GpuDriverNotReadyError, NvmlLibrary
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.machine import NvmlMachine
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from support.fake_mig import FakeMigHardware, FakeMigNvml
from support.fake_nvml import FakeNvml
from support.fake_sysfs import write_machine
from support.mig_geometries import H100_80GB
from support.nvml_mig_world import HOPPER

DGX = read_machine("dgx-1v")


def source(fake: FakeNvml, sys_root: Path) -> NvmlMachine:
    write_machine(sys_root, DGX)
    return NvmlMachine("host-name", NvmlReader(NvmlLibrary(lambda: fake)), Sysfs(str(sys_root)))


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    record.register(parser.add_subparsers())
    return parser.parse_args(["record", *words])


def test_the_file_is_a_recorded_machine(tmp_path: Path) -> None:
    target = tmp_path / "mine.json"
    assert record.run(arguments("-o", str(target), "--name", "mine"), source(FakeNvml(DGX), tmp_path / "sys")) == 0
    recorded = decode_machine(target.read_bytes())
    assert recorded.name == "mine"
    assert recorded.topology.pairs == DGX.topology.pairs
    assert not {gpu.uuid for gpu in recorded.gpus} & {gpu.uuid for gpu in DGX.gpus}


def test_it_records_how_gpus_can_be_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = NvmlLibrary(lambda: FakeMigNvml(FakeMigHardware(HOPPER)))

    def of_this_node(name: str, *, mig_profiles: bool, **_: str) -> NvmlMachine:
        return NvmlMachine(name, NvmlReader(library, mig_profiles=mig_profiles), Sysfs(str(tmp_path / "sys")))

    write_machine(tmp_path / "sys", HOPPER)
    monkeypatch.setattr(NvmlMachine, "of_this_node", of_this_node)
    target = tmp_path / "mine.json"
    assert record.run(arguments("-o", str(target))) == 0
    profiles = [
        sorted(gpu.mig_profiles, key=lambda each: each.name) for gpu in decode_machine(target.read_bytes()).gpus
    ]
    assert profiles == [sorted(H100_80GB, key=lambda each: each.name)] * len(HOPPER.gpus)


def test_without_a_file_it_goes_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record.run(arguments(), source(FakeNvml(DGX), tmp_path)) == 0
    assert decode_machine(capsys.readouterr().out.encode()).name == "8x-tesla-v100-sxm2-16gb"


def test_what_the_driver_refused_is_said_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeNvml(DGX)
    fake.refuse("nvmlDeviceGetMinorNumber", pynvml.NVML_ERROR_NO_PERMISSION, gpu=2)
    record.run(arguments(), source(fake, tmp_path))
    assert "left out: GPU 2: nvmlDeviceGetMinorNumber says NO_PERMISSION" in capsys.readouterr().err


def test_without_a_driver_there_is_one_clear_error_and_no_file(tmp_path: Path) -> None:
    target = tmp_path / "mine.json"
    with pytest.raises(
        GpuDriverNotReadyError, match=f"cannot be used: no libnvidia-ml.so.1 below {tmp_path}"
    ) as caught:
        record.run(arguments("-o", str(target), "--driver-root", str(tmp_path)))
    assert "waiting" not in str(caught.value)  # a command ends: only the plugin waits
    assert not target.exists()


def test_a_folder_that_is_no_folder_is_said_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    words = arguments("-o", str(tmp_path / "file" / "mine.json"))
    with pytest.raises(PermanentError, match=f"cannot write {tmp_path}/file/mine.json"):
        record.run(words, source(FakeNvml(DGX), tmp_path / "sys"))


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BadInputError, match="is not a file"):
        record.run(arguments("-o", str(pipe)), source(FakeNvml(DGX), tmp_path / "sys"))
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["Mine", "a/b", "-a", "a b", "ä"])
def test_a_name_that_is_no_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--name"):
        record.run(arguments(f"--name={name}"), source(FakeNvml(DGX), tmp_path))


@pytest.mark.parametrize("form", ["tree", "matrix", "json", "resourceslices"])
def test_this_machine_shows_as_a_recorded_one_does(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    topology.register(parser.add_subparsers())
    words = ("topology", "show", "-o", form, "--node", "n1")
    assert topology._run_show(parser.parse_args([*words, "--machine", "dgx-1v"])) == 0
    recorded = capsys.readouterr().out
    assert topology._run_show(parser.parse_args([*words, "--nvml"]), source(FakeNvml(DGX), tmp_path)) == 0
    live = capsys.readouterr().out
    if form in ("tree", "matrix"):
        assert live == recorded
    assert len(live.splitlines()) >= len(recorded.splitlines())
