"""nvidia-smi as a process below the driver's root: a stand-in that says with what, and where, it was run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.gpu_driver.use import GpuDriverUse, lent, request_release, withdraw
from dracaena.kubelet_plugin.adapters.programs import nvidia_smi
from dracaena.kubelet_plugin.adapters.programs.persistence_mode import PersistenceMode
from dracaena.kubelet_plugin.gpu_driver.release import GpuDriverRelease
from dracaena.kubelet_plugin.ports import GpuGoneError
from support.clock import FakeClock
from support.plugin import DRIVER

GPU = "0000:18:00.0"
ITSELF = "/proc/self/root"
"""Another root than `/` by its name, with all that a shell needs."""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\necho "$* in $PWD" >> {tmp_path}/calls\ncat {tmp_path}/said\nexit $(cat {tmp_path}/code)\n'
    )
    program.chmod(0o755)
    answers(tmp_path, 0, "All done.")
    monkeypatch.setattr(nvidia_smi, "PROGRAM_FOLDERS", (str(tmp_path),))
    return tmp_path


def answers(folder: Path, code: int, said: str) -> None:
    (folder / "code").write_text(f"{code}\n")
    (folder / "said").write_text(f"{said}\n")


def mode(folder: Path, root: str = "/", *, answer_s: float = 60.0) -> PersistenceMode:
    release = GpuDriverRelease(DRIVER, lambda: GpuDriverUse(folder / "lock", folder / "request"))
    return PersistenceMode(root, in_use=release.in_program, answer_s=answer_s)


def calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return [line.partition(" in ")[0] for line in file.read_text().splitlines()] if file.exists() else []


def test_one_gpu_is_named_by_its_address(smi: Path) -> None:
    mode(smi).set(GPU, on=False)
    mode(smi).set(GPU, on=True)
    assert calls(smi) == [f"-i {GPU} -pm 0", f"-i {GPU} -pm 1"]


def test_the_program_of_a_driver_root_has_that_as_its_root(smi: Path) -> None:
    made = mode(smi, ITSELF)
    if os.geteuid() != 0:
        with pytest.raises(TemporaryError, match="Operation not permitted"):
            made.set(GPU, on=False)
        return
    made.set(GPU, on=False)
    assert (smi / "calls").read_text() == f"-i {GPU} -pm 0 in /\n"


def test_a_refusal_has_the_programs_own_words(smi: Path) -> None:
    answers(smi, 6, "Unable to set persistence mode for GPU 00000000:18:00.0: Unknown Error")
    with pytest.raises(TemporaryError, match=rf"^`nvidia-smi -i {GPU} -pm 1` says: Unable .* Error \(exit code 6\)$"):
        mode(smi).set(GPU, on=True)


def test_a_driver_without_the_program_says_so(smi: Path) -> None:
    (smi / "nvidia-smi").unlink()
    with pytest.raises(TemporaryError, match="cannot be run: no nvidia-smi below / "):
        mode(smi).set(GPU, on=False)


def test_a_program_that_hangs_is_ended(smi: Path) -> None:
    (smi / "code").unlink()
    os.mkfifo(smi / "code")  # nobody writes to it
    with pytest.raises(TemporaryError, match=r"does not answer within 0\.05 s"):
        mode(smi, answer_s=0.05).set(GPU, on=False)


def test_whoever_wants_the_driver_closed_comes_first(smi: Path) -> None:
    with lent(smi / "lock", FakeClock(), 0), pytest.raises(TemporaryError, match="closed for a while"):
        mode(smi).set(GPU, on=False)
    request_release(smi / "request", "it is being updated")
    with pytest.raises(GpuGoneError, match="being updated"):
        mode(smi).set(GPU, on=False)
    withdraw(smi / "request")
    assert calls(smi) == []
    mode(smi).set(GPU, on=False)
    assert calls(smi) == [f"-i {GPU} -pm 0"], "nothing of ours holds the driver"
