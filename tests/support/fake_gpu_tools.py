#!/usr/bin/env python3
"""A stand-in for NVIDIA's nvidia_gpu_tools.py (gpu-admin-tools): its options, its words and its exit codes.

It is a program as the real one is, and main() is the same for tests that start no process. The GPUs are files of a
folder `gpus` beside the program, one JSON object each, by PCI address:

    {"mode": "off", "pending": null, "capable": true, "ppcie": "off"}

`mode` is what the GPU is in, `pending` what the next reset makes of it: whoever resets it, a virtual machine too. Which
driver has a GPU is looked up below `sys` beside that folder, as the real one does below /sys. `faults.json` holds what
goes wrong, by address: a word of FAULTS.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

FAULTS = {
    "dies-before-set": "ends by a signal before it does anything to the GPU",
    "dies-after-set": "ends by a signal between the write and the reset",
    "fails": "says that the firmware does not answer, and does nothing",
    "fails-after-reset": "has switched the GPU, and then says that it has not",
    "hangs": "does not end, and does nothing",
    "hangs-after-set": "does not end between the write and the reset",
    "lies": "says that the mode was set, and nothing has changed",
    "no-query": "cannot tell the mode",
}
MODES = ("off", "on", "devtools")
VERSION = "v2026.02.24o"

Log = Callable[[str, str], None]


class EndedError(Exception):
    """The program ends here by a signal, or hangs until it is ended."""


class Gpu:
    """One GPU, in its file."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.state: dict[str, Any] = json.loads((folder / "gpus" / address).read_text(encoding="utf-8"))

    def __str__(self) -> str:
        return f"GPU {self.address} H100-SXM 0x2330 BAR0 0x52042000000"

    @property
    def driver(self) -> str | None:
        link = self.folder.parent / "sys/bus/pci/devices" / self.address / "driver"
        return link.readlink().name if link.is_symlink() else None

    def write(self, **changes: Any) -> None:
        self.state.update(changes)
        new = self.folder / f".{self.address}.new"  # tests read the file at any time, and kill the program at any step
        new.write_text(json.dumps(self.state), encoding="utf-8")
        new.replace(self.folder / "gpus" / self.address)

    def reset(self) -> None:
        self.write(mode=self.state["pending"] or self.state["mode"], pending=None)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="nvidia_gpu_tools.py")
    made.add_argument("--gpu-bdf")
    made.add_argument("--devices")
    made.add_argument("--query-cc-mode", action="store_true")
    made.add_argument("--set-cc-mode", choices=MODES)
    made.add_argument("--reset-after-cc-mode-switch", action="store_true")
    made.add_argument("--ignore-nvidia-driver", action="store_true")
    return made


def main(arguments: Sequence[str], folder: Path, out: TextIO, err: TextIO) -> int:
    """Run the program and return the exit code. Raises EndedError where it ends otherwise."""
    options = _parser().parse_args(arguments)
    print(f"NVIDIA GPU Tools version {VERSION}", file=out)
    print(f"Command line arguments: {['nvidia_gpu_tools.py', *arguments]}", file=out, flush=True)

    def log(level: str, text: str) -> None:
        print(f"2026-02-24,10:00:00.123 {level:<8} {text}", file=err, flush=True)

    known = sorted(path.name for path in (folder / "gpus").iterdir())
    if options.gpu_bdf is not None:
        found = [name for name in known if options.gpu_bdf in name]
        if len(found) != 1:
            what = f"more than one GPU {', '.join(found)}" if found else "nothing"
            log("ERROR", f"Matching for {options.gpu_bdf} found {what}")
            return 1
    else:
        found = known if options.devices == "gpus" else []
    gpus = [Gpu(folder, name) for name in found]
    print("Topo:", file=out)
    for gpu in gpus:
        print(f"  PCI {gpu.address[:-4]}01.0 0x8086:0x352a", file=out)
        print(f"   {gpu}", file=out, flush=True)
    for gpu in gpus:
        log("INFO", f"Selected {gpu}")
    for gpu in gpus:
        code = _one(gpu, options, log)
        if code:
            return code
    return 0


def _one(gpu: Gpu, options: argparse.Namespace, log: Log) -> int:
    fault = _faults(gpu.folder).get(gpu.address, "")
    if gpu.driver == "nvidia" and not options.ignore_nvidia_driver:
        log(
            "ERROR",
            f"The nvidia driver appears to be using {gpu}, aborting. Specify --ignore-nvidia-driver to ignore this "
            "check.",
        )
        return 1
    if options.set_cc_mode:
        if not gpu.state["capable"]:
            log("ERROR", f"Configuring CC not supported on {gpu}")
            return 1
        code = _switch(gpu, options, log, fault)
        if code:
            return code
    if options.query_cc_mode:
        if not gpu.state["capable"]:
            log("ERROR", f"Querying CC mode is not supported on {gpu}")
            return 1
        if fault == "no-query":
            log("ERROR", f"{gpu} timed out waiting for boot")
            return 1
        log("INFO", f"{gpu} CC mode is {gpu.state['mode']}")
    for words, mode in (("CC", gpu.state["mode"]), ("PPCIe", gpu.state["ppcie"])):
        if mode != "off":
            log("WARNING", f"{gpu} has {words} mode {mode}, some functionality may not work")
    return 0


def _switch(gpu: Gpu, options: argparse.Namespace, log: Log, fault: str) -> int:
    if fault == "fails":
        log("ERROR", f"{gpu} FSP did not answer within 5 seconds")
        return 1
    if fault in ("dies-before-set", "hangs"):
        raise EndedError(fault)
    wanted = options.set_cc_mode
    if fault != "lies":
        gpu.write(pending=wanted)
    log("INFO", f"{gpu} CC mode set to {wanted}. It will be active after GPU reset.")
    if fault in ("dies-after-set", "hangs-after-set"):
        raise EndedError(fault)
    if options.reset_after_cc_mode_switch:
        gpu.reset()
        if fault == "fails-after-reset":
            log("ERROR", f"{gpu} failed to switch to CC mode {wanted}, current mode is off.")
            return 1
        log("INFO", f"{gpu} was reset to apply the new CC mode.")
    return 0


def _faults(folder: Path) -> Mapping[str, str]:
    path = folder / "faults.json"
    found: Mapping[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def run() -> int:
    """Run it as a program of its own."""
    try:
        return main(sys.argv[1:], Path(__file__).resolve().parent, sys.stdout, sys.stderr)
    except EndedError as error:
        if str(error).startswith("hangs"):
            time.sleep(600)
        os.abort()


if __name__ == "__main__":
    sys.exit(run())
