"""Worlds of one run: which tests share the namespaces of one, and how several run side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from e2e.processes import end_with_parent

LOOK_S = 0.2
"""Between two looks at who has ended: nothing beside the minutes that a world takes."""

INTERRUPTED = 130
"""Exit code of a shell for what Ctrl-C ended."""


@dataclass(frozen=True, slots=True)
class World:
    """One run of pytest, and the folder for all that it leaves."""

    name: str
    logs: Path
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to our own."""

    @property
    def output(self) -> Path:
        """What it prints where it runs beside others."""
        return self.logs / "output.txt"

    @property
    def report(self) -> Path:
        """The counts of its tests, as JUnit XML. A world that was cut off has none."""
        return self.logs / "report.xml"


def run_all(worlds: Sequence[World], *, at_once: int) -> list[int]:
    """Run all worlds, so many at once, and return their exit codes in their order. They begin in their order too, so
    the longest ones belong first.

    A world that runs alone prints as it goes. What worlds side by side print is shown one after the other, each when it
    has ended. Ctrl-C reaches all that run, which end in order; the others do not begin, and count as interrupted.
    """
    alone = at_once == 1 or len(worlds) == 1
    codes = dict.fromkeys(range(len(worlds)), INTERRUPTED)
    waiting = list(range(len(worlds)))
    running: dict[int, subprocess.Popen[bytes]] = {}
    with _interrupts() as interrupts:
        while running or (waiting and not interrupts):
            while waiting and len(running) < at_once and not interrupts:
                number = waiting.pop(0)
                running[number] = _start(worlds[number], None if alone else worlds[number].output)
            time.sleep(LOOK_S)
            for number in [number for number, process in running.items() if process.poll() is not None]:
                codes[number] = running.pop(number).returncode
                if not alone:
                    _show(worlds[number])
    return list(codes.values())


def total(worlds: Sequence[World]) -> str:
    """Return the counts of all worlds together, and the worlds that were cut off: nothing is known of their tests."""
    suites: list[ET.Element] = []
    cut_off: list[str] = []
    for world in worlds:
        try:
            suites += ET.parse(world.report).iter("testsuite")
        except (OSError, ET.ParseError):  # also one that was killed while it wrote
            cut_off.append(world.name)
    tests, failed, errors, skipped = (
        sum(int(suite.get(key, "0")) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    counts = f"{tests - failed - errors - skipped} passed, {failed + errors} failed, {skipped} skipped"
    return f"{counts}; cut off: {', '.join(cut_off)}" if cut_off else counts


def _start(world: World, output: Path | None) -> subprocess.Popen[bytes]:
    if output is None:
        return _popen(world, None)
    _say(f"e2e: {world.name} runs; what it prints is shown when it has ended, and is in {output} before that")
    with output.open("wb") as file:
        return _popen(world, file)


def _popen(world: World, output: BinaryIO | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        world.command,
        env={**os.environ, **world.environment},
        stdin=None if output is None else subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - this process has one thread
    )


def _show(world: World) -> None:
    _say(f"== {world.name}\n{world.output.read_text(encoding='utf-8', errors='replace').rstrip()}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect SIGINT inside the block instead of being ended by it."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)
