"""Which files and functions of ours one piece of work enters: what a reader has to open who follows it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from structlog.testing import capture_logs

import dracaena.controller
from dracaena.host.adapters.files.whole_files import FileSteps
from support.allocation import claim, pod, request
from support.plugin import FakeClaims, FakePods, PluginNode, make_claim, make_pod, make_pool, reference_to
from support.reconciling import Bench

ROOT = Path(dracaena.controller.__file__).resolve().parents[1]
PACKAGES = {link.name for link in (ROOT / "src" / "dracaena").iterdir() if link.is_symlink()}

Entered = Mapping[str, set[str]]
"""File, from the root of the repository → its functions that were called. In the order in which files were entered."""


@contextmanager
def entered(path: dict[str, set[str]]) -> Iterator[None]:
    """Note the functions of ours that are called in this thread, until it ends or leave_off() is called.

    Only what a `def` names counts: whether a comprehension is a function differs between versions of Python. The
    collector waits meanwhile: it would close generators that earlier work left behind, and each of those is a call.
    """

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<") and not code.co_filename.startswith("<"):
            file = Path(code.co_filename).resolve()
            if file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[0] in PACKAGES:
                path.setdefault(file.relative_to(ROOT).as_posix(), set()).add(code.co_qualname)

    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        leave_off()
        gc.enable()


def leave_off() -> None:
    """Note nothing more in this thread."""
    sys.setprofile(None)


def decide(bench: Bench, number: int) -> Entered:
    """Decide for a new pod with a claim for two whole GPUs, and return what was entered until the first write."""
    bench.add(claim(f"c{number}", request(count=2)), pod(f"p{number}", f"c{number}"))
    path: dict[str, set[str]] = {}
    bench.api.before = lambda verb, key: leave_off()
    with entered(path):
        step = bench.reconciler.plan(f"default/p{number}")
        assert bench.reconciler.carry_out(f"default/p{number}", step)
    return path


def warm_decision() -> Entered:
    """Return what a decision enters while no pod waits and everything that it needs was read before."""
    bench = Bench()
    for number in range(2):
        decide(bench, number)
    return decide(bench, 2)


def decision_beside_waiting_pods() -> Entered:
    """Return what such a decision enters while a pod waits that fits nowhere."""
    bench = Bench()
    bench.add(claim("many", request(count=99)), pod("waits", "many"))
    assert bench.reconciler.carry_out("default/waits", bench.reconciler.plan("default/waits"))
    for number in range(2):
        decide(bench, number)
    return decide(bench, 2)


class _UntilTheSpec(FileSteps):
    def rename(self, source: Path, target: Path, folder: int) -> None:
        super().rename(source, target, folder)
        if target.parent.name == "cdi":
            leave_off()


def prepare_of_a_whole_gpu(folder: Path) -> Entered:
    """Prepare a claim for two whole GPUs that changes nothing on the node, beside one that is prepared; return what was
    entered until its CDI spec was in place.
    """
    claims = {name: make_claim(name, gpus, reserved_for={name: f"{name}-uid"}) for name, gpus in _GPUS.items()}
    pods = FakePods(*(make_pod(name, claims={"claim": name}) for name in claims))
    node = PluginNode(folder, FakeClaims(*claims.values()), pods, steps=_UntilTheSpec())
    node.state.prepare(reference_to(claims["first"]))
    path: dict[str, set[str]] = {}
    with entered(path):
        node.state.prepare(reference_to(claims["second"]))
    assert "cdi/gpu.dracaena.dev-claim_second-uid.json" in node.files()
    return path


def steps_of_a_prepare(folder: Path, beside: int) -> int:
    """Return how many instructions of Python a prepare of one GPU takes beside so many prepared claims, whatever the
    machine: without what happens inside functions written in C.
    """
    claims = [make_claim(f"c{n:04}", (n,), reserved_for={f"p{n:04}": f"p{n:04}-uid"}) for n in range(beside + 2)]
    pods = FakePods(*(make_pod(f"p{n:04}", claims={"claim": f"c{n:04}"}) for n in range(beside + 2)))
    known = pods.values()
    pods.values = lambda: known  # type: ignore[method-assign]
    pool = make_pool(300)  # the same for all, with addresses, without which any GPU may be any other
    gpus = {name: replace(gpu, pci_bus_id=f"{gpu.index:04x}:00:00.0") for name, gpu in pool.gpus.items()}
    node = PluginNode(folder, FakeClaims(*claims), pods, pool=replace(pool, gpus=gpus))
    for prepared in claims[:-1]:
        node.state.prepare(reference_to(prepared))
    steps = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "opcode"
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        node.state.prepare(reference_to(claims[-1]))
    finally:
        sys.settrace(before)
    return steps


_GPUS = {"first": (0, 1), "second": (2, 3)}


def told(path: Entered) -> str:
    """Return a path for people, one file a line."""
    lines = "\n".join(f"{len(names):4} {file}" for file, names in path.items())
    return f"{len(path)} files, {functions(path)} functions:\n{lines}\n"


def functions(path: Entered) -> int:
    """Return how many functions were entered."""
    return sum(map(len, path.values()))


@cache
def paths_of_a_fresh_process() -> Sequence[Entered]:
    """Return what a prepare enters, what a decision does and what one beside waiting pods does, where nothing else ran
    before: what other tests of a process leave in its caches changes the path.
    """
    command = [sys.executable, "-P", "-m", "support.work_paths"]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=True,
    )
    return [{file: set(names) for file, names in path.items()} for path in json.loads(ran.stdout)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, capture_logs():
        paths = prepare_of_a_whole_gpu(Path(folder)), warm_decision(), decision_beside_waiting_pods()
    sys.stdout.write(json.dumps([{file: sorted(names) for file, names in path.items()} for path in paths]))


if __name__ == "__main__":
    main()
