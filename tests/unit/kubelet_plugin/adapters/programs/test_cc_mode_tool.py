"""NVIDIA's program as a process: a stand-in with its options and words, that fails, lies, hangs and dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.kubelet_plugin.adapters.programs import child_process
from dracaena.kubelet_plugin.adapters.programs.cc_mode_tool import CcModeTool
from dracaena.kubelet_plugin.adapters.sysfs.driver_files import gpu_writing
from dracaena.kubelet_plugin.ports import CcModeProgram, NotOfferedError, WriteHangsError
from support.cc_hardware import CcHardware, FakeCcModes
from support.fake_gpu_tools import FAULTS
from support.kube import wait_for

GPU, OTHER = "0000:18:00.0", "0000:3b:00.0"
NAMESAKE = f"1{GPU}"
"""In a PCI domain of five digits, of which GPU's address is a part."""
NOBODY = 65534


@pytest.fixture
def hardware(tmp_path: Path) -> CcHardware:
    return CcHardware(tmp_path / "tools", GPU, OTHER)


def tool(hardware: CcHardware, limit_s: float = 30.0) -> CcModeTool:
    return CcModeTool(str(hardware.program), hardware.folder / "locks", query_s=limit_s, switch_s=limit_s)


def test_a_mode_is_switched_and_read_of_one_gpu_alone(hardware: CcHardware) -> None:
    program = tool(hardware)
    assert program.missing() is None
    assert program.query(GPU) == "off"
    program.switch(GPU, "on")
    assert program.query(GPU) == "on"
    assert program.query(OTHER) == "off"
    program.switch(GPU, "devtools")
    assert hardware.modes() == {GPU: "devtools", OTHER: "off"}


def test_a_gpu_that_cannot_is_told_apart_from_one_that_fails(hardware: CcHardware) -> None:
    hardware.set(GPU, capable=False)
    program = tool(hardware)
    with pytest.raises(NotOfferedError, match=r"Querying CC mode is not supported on GPU 0000:18:00\.0"):
        program.query(GPU)
    with pytest.raises(NotOfferedError, match="Configuring CC not supported"):
        program.switch(GPU, "on")
    with pytest.raises(NotOfferedError, match="found nothing"):
        program.query("0000:99:00.0")
    hardware.set(OTHER, ppcie="on")
    with pytest.raises(NotOfferedError, match="protected PCIe"):
        program.query(OTHER)


def test_a_gpu_that_the_nvidia_driver_has_is_refused_by_the_program(hardware: CcHardware) -> None:
    driver = hardware.folder.parent / "sys/bus/pci/devices" / GPU
    driver.mkdir(parents=True)
    (driver / "driver").symlink_to("../../drivers/nvidia")
    with pytest.raises(TemporaryError, match=r"driver appears to be using GPU 0000:18:00\.0"):
        tool(hardware).query(GPU)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.startswith("hangs")])
def test_the_program_and_what_stands_in_for_it_in_other_tests_answer_alike(hardware: CcHardware, fault: str) -> None:
    hardware.faults({GPU: fault})
    answers = []
    for program in (tool(hardware), FakeCcModes(hardware)):
        hardware.set(GPU, mode="off", pending=None)
        answers.append(
            (answer(program, "switch"), hardware.modes(), hardware.after_a_reset(), answer(program, "query"))
        )
    assert answers[0] == answers[1]


def answer(program: CcModeProgram, verb: str) -> object:
    try:
        if verb == "query":
            return program.query(GPU)
        program.switch(GPU, "on")
    except DracaenaError as error:
        return type(error)
    return "switched"


@pytest.mark.parametrize("fault", ["hangs", "hangs-after-set"])
def test_a_program_that_hangs_is_ended_with_its_whole_group(
    hardware: CcHardware, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "KILL_S", 30.0)  # on a busy machine the end of a killed process may take longer
    hardware.faults({GPU: fault})
    program = tool(hardware, 0.5)
    with pytest.raises(TemporaryError, match=r"--set-cc-mode=on .*took 0.5 s and was ended"):
        program.switch(GPU, "on")
    with gpu_writing(hardware.folder / "locks", GPU):
        pass  # nobody holds it: the process is gone
    assert hardware.modes()[GPU] == "off"


def test_while_an_earlier_program_is_there_no_other_is_started(hardware: CcHardware) -> None:
    with gpu_writing(hardware.folder / "locks", GPU), pytest.raises(WriteHangsError, match="has not ended"):
        tool(hardware).switch(GPU, "on")
    assert hardware.modes()[GPU] == "off"


def test_a_program_goes_on_when_the_plugin_is_killed_and_holds_its_gpu_meanwhile(hardware: CcHardware) -> None:
    """Ended at a pipe that nobody reads it would leave a mode behind that the next reset makes active."""
    go = hardware.folder / "go"
    text = hardware.program.read_text()
    slow = f"    while not Path({str(go)!r}).exists():\n        time.sleep(0.01)\n    if options.reset_after"
    hardware.program.write_text(text.replace("    if options.reset_after", slow, 1))
    source = (
        "import sys; from pathlib import Path\n"
        "from dracaena.kubelet_plugin.adapters.programs.cc_mode_tool import CcModeTool\n"
        f"CcModeTool({str(hardware.program)!r}, Path({str(hardware.folder / 'locks')!r})).switch({GPU!r}, 'on')"
    )
    plugin = subprocess.Popen([sys.executable, "-c", source])
    try:
        wait_for(lambda: hardware.after_a_reset()[GPU] == "on", "the mode is set")
        plugin.kill()
        plugin.wait()
        assert hardware.modes()[GPU] == "off"
        with pytest.raises(WriteHangsError):
            tool(hardware).query(GPU)
        go.touch()
        wait_for(lambda: answer(tool(hardware), "query") == "on", "the program has ended")
    finally:
        go.touch()
        with suppress(ProcessLookupError):
            os.kill(plugin.pid, signal.SIGKILL)


def test_a_program_that_is_not_there_or_may_not_be_run_says_who_must_act(hardware: CcHardware, tmp_path: Path) -> None:
    absent = CcModeTool(str(tmp_path / "none.py"), tmp_path)
    assert "mount NVIDIA's gpu-admin-tools" in (absent.missing() or "")
    with pytest.raises(TemporaryError, match=r"says: .*No such file or directory"):
        absent.query(GPU)
    other = tmp_path / "nvidia_gpu_tools"
    other.write_text("#!/bin/sh\nexit 3\n")
    other.chmod(0o644)
    assert "may not be run" in (CcModeTool(str(other), tmp_path).missing() or "")
    with pytest.raises(TemporaryError, match=r"cannot run .*: Permission denied"):
        CcModeTool(str(other), tmp_path / "locks").query(GPU)
    other.chmod(0o755)
    assert CcModeTool(str(other), tmp_path).missing() is None
    with pytest.raises(TemporaryError, match=r"says: nothing \(exit code 3\)"):
        CcModeTool(str(other), tmp_path / "locks").query(GPU)
    assert "name NVIDIA's program again" in (CcModeTool("", tmp_path).missing() or "")


def devices_of(folder: Path, vendor: str) -> str:
    """A bus that has NAMESAKE alone."""
    device = folder / "sys/bus/pci/devices" / NAMESAKE
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    return str(folder / "sys")


def test_another_gpu_whose_address_has_that_of_one_that_is_gone_as_a_part_is_left_alone(tmp_path: Path) -> None:
    hardware = CcHardware(tmp_path / "tools", NAMESAKE)
    program = CcModeTool(str(hardware.program), tmp_path / "locks", sys_root=devices_of(tmp_path, vendor="0x10de"))
    for call in (lambda: program.switch(GPU, "on"), lambda: program.query(GPU)):
        with pytest.raises(NotOfferedError, match=f"{GPU} alone, .* {NAMESAKE} is there too"):
            call()
    assert hardware.after_a_reset() == {NAMESAKE: "off"}
    program.switch(NAMESAKE, "on")
    assert hardware.modes() == {NAMESAKE: "on"}


def test_a_disk_whose_address_has_a_gpus_as_a_part_is_none_that_the_program_looks_at(
    hardware: CcHardware, tmp_path: Path
) -> None:
    """As behind Intel VMD."""
    program = CcModeTool(str(hardware.program), tmp_path / "locks", sys_root=devices_of(tmp_path, vendor="0x8086"))
    assert program.query(GPU) == "off"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be led to run what others wrote")
@pytest.mark.parametrize("place", ["nvidia_gpu_tools.py", ".", "gpu", "gpu/regs.py", "json.py"])
@pytest.mark.parametrize(("owner", "mode"), [(NOBODY, 0o755), (0, 0o777), (0, 0o757), (0, 0o1777)])
def test_a_program_that_others_than_root_may_change_is_not_run(
    hardware: CcHardware, place: str, owner: int, mode: int
) -> None:
    """Everybody may add a module that Python loads in place of its own, to a sticky folder too."""
    (hardware.folder / "gpu").mkdir()
    for module in ("gpu/regs.py", "json.py"):
        (hardware.folder / module).touch()
    program = tool(hardware)
    assert program.missing() is None
    (hardware.folder / place).chmod(mode)
    os.chown(hardware.folder / place, owner, 0)
    refused = f"is not run as root: .*{(hardware.folder / place).resolve()}( |$)"
    assert re.search(refused, program.missing() or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be led to run what others wrote")
def test_a_folder_of_modules_that_lies_elsewhere_is_refused(hardware: CcHardware, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (hardware.folder / "utils").symlink_to(tmp_path / "elsewhere")
    assert "leads out of its folder" in (tool(hardware).missing() or "")
