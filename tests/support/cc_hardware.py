"""GPUs with modes of confidential computing: files that a stand-in for NVIDIA's program keeps, and what asks it."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.discovery.cc_mode_tool import (
    is_unsupported,
    mode_in,
    protected_pcie_in,
    query_options,
    shown,
    switch_options,
)
from dracaena.kubelet_plugin.ports import NotOfferedError, WriteHangsError
from support import fake_gpu_tools


class CcHardware:
    """The GPUs of `folder`, beside a copy of the program. They outlive every process of the plugin."""

    def __init__(self, folder: Path, *addresses: str, mode: str = "off") -> None:
        self.folder = folder
        self.program = folder / "nvidia_gpu_tools.py"
        (folder / "gpus").mkdir(parents=True)
        shutil.copy(fake_gpu_tools.__file__, self.program)
        for address in addresses:
            self.set(address, mode=mode, pending=None, capable=True, ppcie="off")

    def set(self, address: str, **state: Any) -> None:
        path = self.folder / "gpus" / address
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **state}))

    def faults(self, faults: Mapping[str, str]) -> None:
        (self.folder / "faults.json").write_text(json.dumps(faults))

    def modes(self) -> dict[str, str]:
        return {path.name: json.loads(path.read_text())["mode"] for path in sorted((self.folder / "gpus").iterdir())}

    def after_a_reset(self) -> dict[str, str]:
        """The modes that the GPUs would be in once somebody resets them, as a virtual machine does."""
        states = {path.name: json.loads(path.read_text()) for path in sorted((self.folder / "gpus").iterdir())}
        return {name: state["pending"] or state["mode"] for name, state in states.items()}


class FakeCcModes:
    """Implements ports.CcModeProgram by the program's own code, without a process for each call.

    `step` is told before and after each change. `is_gone`: why there is no program.
    """

    def __init__(self, hardware: CcHardware, step: Callable[[str], None] = lambda _what: None) -> None:
        self.hardware, self.step = hardware, step
        self.is_gone: str | None = None
        self.queries: list[str] = []
        self.switches: list[str] = []

    def missing(self) -> str | None:
        return self.is_gone

    def query(self, address: str) -> str:
        self.queries.append(address)
        said, code = self._run(*query_options(address))
        if protected_pcie_in(said):
            raise NotOfferedError(f"the GPU at {address} is in the mode of protected PCIe")
        mode = mode_in(said, address)
        if code or mode is None:
            raise self._refusal(address, said)
        return mode

    def switch(self, address: str, mode: str) -> None:
        self.switches.append(address)
        self.step(f"before switching {address}")
        said, code = self._run(*switch_options(address, mode))
        self.step(f"after switching {address}")
        if code:
            raise self._refusal(address, said)

    def _refusal(self, address: str, said: str) -> Exception:
        text = f"the GPU at {address}: {shown(said)}"
        return NotOfferedError(text) if is_unsupported(said) else TemporaryError(text)

    def _run(self, *words: str) -> tuple[str, int]:
        out = io.StringIO()
        try:
            code = fake_gpu_tools.main(words, self.hardware.folder, out, out)
        except fake_gpu_tools.EndedError as error:
            if str(error) == "stays":
                raise WriteHangsError("the program cannot be ended") from error
            return f"{out.getvalue()}ended by a signal", -6
        return out.getvalue(), code
