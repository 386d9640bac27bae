"""Runs the bench of the node: `make bench-node`. Prints tables, then one line a floor.

Exit status 1 when a floor is broken; progress goes to stderr. Everything is real but the GPUs (a recorded machine),
kubelet (this program calls as it does) and, unless --api names one, the API server (the embedded one, in a process of
its own).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.node import disk, exporter, measure, reference_driver, shares
from bench.node.api import embedded_api
from bench.node.driver import Dracaena, NodeDriver, NotReadyError, Reference
from bench.node.ground import SMALL, Claim, Ground, Part, device_names
from bench.report import Floor, Row, Section, as_document, as_text, floors_as_text

MACHINE = "hgx-h100"
"""8 GPUs: what most nodes have."""

LARGE_MACHINE = "dgx-2"
"""16 GPUs: the most that a recorded machine has."""

HELD = (0, 100, 500)
"""Claims that are prepared already."""

CALL_FLOOR_MS, CALL_GOAL_MS = 25.0, 10.0
REST_FLOOR_MIB, REST_GOAL_MIB = 110.0, 90.0
REST_GOAL_CPU = 0.5
FLAT_FLOOR, FLAT_GOAL = 3.0, 1.5
"""How much longer the median call may take with the most claims held than with none: to look at 500 files takes some
milliseconds, and a time that grew with their number squared was 60 times as long."""

EXPORTER_REST_S = 20.0

PARTS = ("calls", "start", "exporter", "shares", "leak", "rest")

MIB = 1024 * 1024


@dataclass
class Bench:
    """The world of one run, and what was found."""

    folder: Path
    kubeconfig: Path
    options: argparse.Namespace
    tell: Callable[[str], None]
    rows: list[Row] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ground = Ground(self.kubeconfig)
        self.ground.make_node()
        self._drivers = 0

    def dracaena(self, machine: str = MACHINE) -> Dracaena:
        """Return our plugin with fresh folders, not started."""
        return Dracaena(self.fresh(), self.kubeconfig, machine)

    def reference(self, program: Path, machine: str = MACHINE) -> Reference:
        """Return the trivial driver with fresh folders, not started."""
        return Reference(self.fresh(), self.kubeconfig, machine, program)

    @contextmanager
    def started(self, driver: NodeDriver) -> Iterator[NodeDriver]:
        """Run a driver inside a block, without anything of the one before."""
        self.ground.delete_slices()
        with driver.start(self.ground.published_devices):
            yield driver

    def claims(
        self, prefix: str, count: int, part: Part | None = None, *, devices: Sequence[str] = device_names(MACHINE)
    ) -> list[Claim]:
        """Make claims for one GPU of `devices` each, in turns, or a part of one, and their pods."""
        return [self.ground.claim(f"{prefix}-{n}", devices[n % len(devices)], part) for n in range(count)]

    def fresh(self) -> Path:
        """Return a folder that is not there yet."""
        self._drivers += 1
        return self.folder / str(self._drivers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = _options(arguments)
    began_s = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - began_s:4.0f} s] {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="dra-", dir=options.folder) as name:
        folder = Path(name)
        kubeconfig = Path(options.api) if options.api else folder / "kubeconfig"
        program = _reference(folder, options, tell)
        with _api(kubeconfig, options):
            bench = Bench(folder, kubeconfig, options, tell)
            try:
                _run(bench, program)
            except NotReadyError as error:
                print(f"bench-node: {error}", file=sys.stderr)
                return 1
    section = Section(
        "The plugin on a node", rows=tuple(bench.rows), floors=tuple(bench.floors), notes=tuple(bench.notes)
    )
    if options.output == "json":
        print(json.dumps(as_document([section]), indent=1))
    else:
        print(as_text(section))
        print("== Floors ==\n" + floors_as_text(section.floors), end="")
    tell("done")
    return 0 if all(floor.holds for floor in section.floors) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-node", description="measure what the plugin costs a node")
    parser.add_argument("--calls", type=int, default=300, help="claims that are prepared and unprepared a row")
    parser.add_argument("--cycles", type=int, default=1000, help="cycles that must leak nothing; 0: leave it out")
    parser.add_argument("--rest-s", type=float, default=600.0, help="seconds at rest; 0: leave it out")
    parser.add_argument("--pause-ms", type=float, default=100.0, help="pause behind each call; kubelet has longer ones")
    parser.add_argument("--folder", default=None, help="where all files are; the system's place for temporary ones")
    parser.add_argument("--api", default="", help="kubeconfig of a kube-apiserver without nodes; empty: embedded")
    parser.add_argument("--no-reference", action="store_true", help="leave out the driver on the Go library")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part alone; may be repeated")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args(arguments)


def _reference(folder: Path, options: argparse.Namespace, tell: Callable[[str], None]) -> Path | str:
    """Return the trivial driver, or why it is not there."""
    if options.no_reference:
        return "left out on request"
    tell("building the driver on the Go library")
    try:
        return reference_driver.build(folder)
    except reference_driver.BuildError as error:
        return str(error)


@contextmanager
def _api(kubeconfig: Path, options: argparse.Namespace) -> Iterator[None]:
    if options.api:
        yield
        return
    with embedded_api(kubeconfig):
        yield


def _run(bench: Bench, program: Path | str) -> None:
    options = bench.options
    library = f"k8s.io/dynamic-resource-allocation {reference_driver.library_version()}"
    against = f"a trivial driver on {library}: two files a claim with fsync, no look at other claims, nothing told"
    if not isinstance(program, Path):
        against = f"not measured beside it: a driver on {library}: {program}"
    took = disk.replacement_s(bench.folder)
    replaced = f"{measure.median_ms(took):.2f} ms (p50), {measure.percentile_ms(took, 99):.2f} ms (p99)"
    bench.notes += [
        f"API: {options.api or 'the embedded server, in a process of its own'}; GPUs: recorded machine {MACHINE}",
        f"disk: {disk.file_system(bench.folder)}; a file replaced with fsync takes {replaced}: our prepare has none",
        f"calls come one after the other with {options.pause_ms:g} ms between them, {options.calls} a row",
        f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores when it began",
        against,
    ]
    measures: dict[str, Callable[[], None]] = {
        "calls": lambda: _measure_calls(bench, program),
        "start": lambda: _measure_start(bench, program),
        "exporter": lambda: _measure_exporter(bench),
        "shares": lambda: _measure_shares(bench),
        "leak": lambda: _measure_leak(bench) if options.cycles else None,
        "rest": lambda: _measure_rest(bench) if options.rest_s else None,
    }
    for part in PARTS:
        if part in (options.only or PARTS):
            measures[part]()


def _measure_calls(bench: Bench, program: Path | str) -> None:
    options = bench.options
    bench.tell(f"making {max(HELD)} claims to hold and {options.calls} to call for")
    *shared, alone = device_names(MACHINE)  # the plugin gives no GPU away as a whole that is held in shares
    held = bench.claims("held", max(HELD), SMALL, devices=shared)
    timed = bench.claims("timed", options.calls, devices=[alone])
    ours = _calls_of(bench, bench.dracaena(), held, timed)
    theirs = _calls_of(bench, bench.reference(program), held, timed) if isinstance(program, Path) else {}
    for count in HELD:
        for operation in ("prepare", "unprepare"):
            mine = getattr(ours[count], f"{operation}_s")
            other = getattr(theirs[count], f"{operation}_s") if theirs else ()
            for percent in (50, 99):
                name = f"{operation}, {count} claims prepared, p{percent}"
                against = measure.percentile_ms(other, percent) if other else None
                bench.rows.append(_row(name, measure.percentile_ms(mine, percent), against, "ms"))
            worst = measure.percentile_ms(mine, 99)
            bench.floors.append(
                Floor(f"{operation}, {count} claims prepared, p99", worst, CALL_FLOOR_MS, "ms", CALL_GOAL_MS)
            )
        cpu = theirs[count].cpu_s * 1000 if theirs else None
        bench.rows.append(_row(f"CPU of both, {count} claims prepared", ours[count].cpu_s * 1000, cpu, "ms"))
    for operation in ("prepare", "unprepare"):
        few, many = (measure.median_ms(getattr(ours[count], f"{operation}_s")) for count in (min(HELD), max(HELD)))
        name = f"{operation}, {max(HELD)} claims prepared against {min(HELD)}, p50"
        bench.floors.append(Floor(name, many / few, FLAT_FLOOR, "times", FLAT_GOAL))


def _calls_of(
    bench: Bench, driver: NodeDriver, held: Sequence[Claim], timed: Sequence[Claim]
) -> dict[int, measure.Calls]:
    found = {}
    with bench.started(driver):
        done = 0
        for count in HELD:
            bench.tell(f"{driver.name}: calls with {count} claims prepared")
            measure.hold(driver, held[done:count])
            done = count
            found[count] = measure.calls(driver, timed, pause_s=bench.options.pause_ms / 1000)
    return found


def _measure_start(bench: Bench, program: Path | str) -> None:
    for machine in (MACHINE, LARGE_MACHINE):
        count = len(device_names(machine))
        bench.tell(f"start with {count} GPUs")
        with bench.started(bench.dracaena(machine)) as ours:
            mine = ours.started_s
        other = None
        if isinstance(program, Path):
            with bench.started(bench.reference(program, machine)) as theirs:
                other = theirs.started_s
        bench.rows.append(_row(f"start to ready, {count} GPUs", mine, other, "s"))


def _measure_exporter(bench: Bench) -> None:
    folder = bench.folder / "exporter"
    folder.mkdir()
    found, floors = exporter.rows(exporter.measure(folder, EXPORTER_REST_S, bench.tell))
    bench.rows += found
    bench.floors += floors
    bench.notes.append("exporter: its fake driver runs in its own process and counts; that of a real one does not")


def _measure_shares(bench: Bench) -> None:
    options, ground = bench.options, bench.ground
    with shares.sharing_node(bench.fresh(), bench.kubeconfig, MACHINE, ground) as node:
        claims = {kind: shares.claims_of(ground, node, kind, shares.CLAIMS) for kind in shares.WORDS}
        held, *claims["beside"] = claims["beside"]
        node.plugin.prepare(held)
        before = node.left()
        count = min(options.calls, shares.MOST_CALLS)
        command_ms = measure.median_ms(shares.command_s(node))
        found = shares.measure_calls(node, claims, count, pause_s=options.pause_ms / 1000, tell=bench.tell)
        rows, floors = shares.rows_of_calls(found)
        bench.rows += rows
        bench.floors += floors
        if options.cycles:
            bench.tell(f"{options.cycles} cycles of prepare and unprepare of shares")
            cycled = {kind: claims[kind][0] for kind in shares.WORDS if kind != "whole GPU"}
            bench.floors += shares.leak(node, cycled, options.cycles, before, bench.tell)
    bench.notes.append(
        f"shares: {count} calls a row; `dracaena mps` beside the plugin, on a fake control program of protocol 3 (a "
        f"command takes {command_ms:.1f} ms, p50), a fake NVML of driver R615 and a fake nvidia-smi"
    )


def _measure_leak(bench: Bench) -> None:
    cycles = bench.options.cycles
    bench.tell(f"{cycles} cycles of prepare and unprepare")
    with bench.started(bench.dracaena()) as driver:
        found = measure.leak(driver, bench.claims("cycled", len(driver.devices)), cycles)
    what = f"after {cycles:,} cycles"
    bench.floors += [
        Floor(f"files more {what}", found.files, 0),
        Floor(f"descriptors more {what}", found.descriptors, 0),
        Floor(f"threads more or fewer {what}", found.threads, 0),
        Floor(f"memory more {what}", found.rss_bytes / MIB, measure.LEAK_FLOOR_MIB, "MiB"),
    ]


def _measure_rest(bench: Bench) -> None:
    driver = bench.dracaena()
    with bench.started(driver):
        measure.hold(driver, bench.claims("resting", len(driver.devices)))
        found = measure.rest(driver, bench.options.rest_s, bench.tell)
    usage = found.usage
    bench.rows += [
        _row("at rest: memory (RSS)", usage.rss_bytes / MIB, None, "MiB"),
        _row("at rest: memory, shared pages by share (PSS)", usage.pss_bytes / MIB, None, "MiB"),
        _row("at rest: CPU", found.cpu_share, None, "% of a core"),
        _row("at rest: threads", usage.threads, None, ""),
        _row("at rest: descriptors", usage.descriptors, None, ""),
    ]
    bench.notes.append(
        f"at rest: {bench.options.rest_s:g} s with all GPUs in claims, health watched and streamed, probed every "
        f"{measure.PROBE_EVERY_S:g} s, scraped every {measure.SCRAPE_EVERY_S:g} s"
    )
    bench.floors += [
        Floor("at rest: memory (RSS)", usage.rss_bytes / MIB, REST_FLOOR_MIB, "MiB", REST_GOAL_MIB),
        Floor("at rest: CPU", found.cpu_share, REST_GOAL_CPU, "% of a core"),
    ]


def _row(name: str, ours: float, theirs: float | None, unit: str) -> Row:
    return Row(name, ours, theirs, unit, against="" if theirs is None else "Go library")


if __name__ == "__main__":
    sys.exit(main())
