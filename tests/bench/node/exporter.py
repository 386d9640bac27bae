"""The exporter as a process: what a scrape takes, and what it costs a node to be scraped every 10 s.

The GPUs are a fake library below the real pynvml, in the exporter's own process: its time counts as the exporter's, and
that of a real driver is left out.

Beside each scrape stands a fixed piece of work of the bench's own process, which waits for nobody. The longest scrapes
wait for nothing either: neither for the page's rest, nor for the garbage collector, nor for another thread. All their
steps take several times as long as usual, in CPU time too, because the processor does less then (a virtual machine's
whose host is busy, say). How far the p99 of the fixed work lies above its p50 tells what of that is the machine's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.node.measure import percentile_ms
from bench.report import Floor, Row
from dracaena.exporter.side_by_side import THREADS, side_by_side
from dracaena.process.garbage import leave_out_what_was_loaded
from support.exporting_node import ExportingNode, entry, gpu_uuid, machine_of, pod_uid
from support.exporting_nvml import ExportingNvml, FakeProcess

TESTS = Path(__file__).parents[2]

GPUS = 8
PROCESSES = 2
"""Of each container: one that computes, and one that loads data."""

WARM_SCRAPES = 10
"""Before any is counted: the first loads what it needs."""
SCRAPES = 300
SLOW_SCRAPES = 60
SCRAPE_EVERY_S = 10.0
SCRAPE_FLOOR_MS = 50.0
CPU_FLOOR = 0.5
"""Percent of a core."""
MEMORY_FLOOR_MIB = 90.0

CALLS_S = {
    "nvmlDeviceGetTotalEnergyConsumption": 0.0046,
    "nvmlDeviceGetProcessUtilization": 0.0043 / 2,  # asked twice, first how much there is
    "nvmlGpmMetricsGet": 0.0030,
    "nvmlDeviceGetPcieReplayCounter": 0.0007,
    "nvmlDeviceGetGridLicensableFeatures_v4": 0.0005,
    "nvmlDeviceGetMigMode": 0.0003,
}
"""What single calls take on a real GPU at work (docs/dev/device.md)."""

FIXED_LINES = 10_000
"""Made into text: about as much work as a scrape, some 10 ms."""

_TICKS_PER_S = 100
_MIB = 1 << 20
_PAUSE_S = 0.05
"""Behind each scrape, at least."""
_REST_PER_WORK = 5
"""Times as long as a scrape took for which none follows. A page rests four times as long as it worked, so a scrape that
came at once would measure the rest of the one before, which no scraper with 10 s between two ever meets."""


@dataclass(frozen=True, slots=True)
class ExporterCosts:
    """What was measured."""

    scrapes_s: Sequence[float]
    cpu_per_scrape_s: float
    cpu_at_rest: float
    """Seconds of CPU for each second without scrapes."""
    rss_bytes: int
    series: int
    fixed_s: Sequence[float] = ()
    """What the fixed work took, as often as there were scrapes."""
    one_thread_s: Sequence[float] = ()
    """Scrapes of GPUs whose calls take CALLS_S, one GPU after the other."""
    threads_s: Sequence[float] = ()
    """The same as it is: several at once."""

    @property
    def cpu_percent(self) -> float:
        """Return the percent of a core at one scrape every SCRAPE_EVERY_S."""
        return (self.cpu_per_scrape_s / SCRAPE_EVERY_S + self.cpu_at_rest) * 100


def measure(folder: Path, rest_s: float, tell: Callable[[str], None]) -> ExporterCosts:
    """Start an exporter in a process of its own, scrape it, leave it alone, and end it."""
    tell(f"exporter: {SCRAPES} scrapes of {GPUS} GPUs")
    with _exporter(folder / "quick") as (pid, url):
        costs = _measure(pid, url, rest_s, tell)
    tell(f"exporter: {2 * SLOW_SCRAPES} scrapes of GPUs whose calls take their time")
    for threads in (1, THREADS):
        with _exporter(folder / f"slow-{threads}", threads) as (_, url):
            took = []
            for _ in range(WARM_SCRAPES + SLOW_SCRAPES):
                took.append(_scrape(url)[0])
                time.sleep(_REST_PER_WORK * took[-1])
            took = took[WARM_SCRAPES:]
        costs = replace(costs, one_thread_s=took) if threads == 1 else replace(costs, threads_s=took)
    return costs


@contextmanager
def _exporter(folder: Path, slow_with_threads: int = 0) -> Iterator[tuple[int, str]]:
    """Run one; yield its process id and the address of its metrics."""
    command = [sys.executable, "-P", "-m", "bench.node.exporter", str(folder), str(slow_with_threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(TESTS)}) as process:
        try:
            assert process.stdout is not None
            yield process.pid, f"http://127.0.0.1:{int(process.stdout.readline())}/metrics"
        finally:
            process.terminate()


def _measure(pid: int, url: str, rest_s: float, tell: Callable[[str], None]) -> ExporterCosts:
    for _ in range(WARM_SCRAPES):
        series = _scrape(url)[1]
    before_s = _cpu_s(pid)
    took, fixed = [], []
    for _ in range(SCRAPES):
        took.append(_scrape(url)[0])
        time.sleep(max(_PAUSE_S, _REST_PER_WORK * took[-1]))
        fixed.append(_fixed_work())
        time.sleep(_PAUSE_S)
    between_s = _cpu_s(pid)
    tell(f"exporter: {rest_s:g} s without a scrape")
    time.sleep(rest_s)
    rest = (_cpu_s(pid) - between_s) / rest_s
    return ExporterCosts(took, (between_s - before_s) / SCRAPES, rest, _rss_bytes(pid), series, fixed)


def rows(costs: ExporterCosts) -> tuple[list[Row], list[Floor]]:
    """Return the figures, and what a release must keep."""
    p99 = percentile_ms(costs.scrapes_s, 99)
    memory_mib = costs.rss_bytes / _MIB
    return (
        [
            *(
                Row(
                    f"exporter: scrape, p{percent}",
                    percentile_ms(costs.scrapes_s, percent),
                    percentile_ms(costs.fixed_s, percent) if costs.fixed_s else None,
                    unit="ms",
                    against="fixed work" if costs.fixed_s else "",
                )
                for percent in (50, 99)
            ),
            Row("exporter: CPU of a scrape", costs.cpu_per_scrape_s * 1000, unit="ms"),
            Row("exporter: lines of series", costs.series),
            *(
                Row(
                    f"exporter: scrape of {GPUS} GPUs whose calls take as long as real ones, p{percent}",
                    percentile_ms(costs.threads_s, percent),
                    percentile_ms(costs.one_thread_s, percent),
                    unit="ms",
                    against="one thread",
                )
                for percent in (50, 99)
                if costs.threads_s
            ),
        ],
        [
            Floor(f"exporter: scrape of {GPUS} GPUs, p99", p99, SCRAPE_FLOOR_MS, "ms"),
            Floor(f"exporter: CPU at a scrape every {SCRAPE_EVERY_S:g} s", costs.cpu_percent, CPU_FLOOR, "% of a core"),
            Floor("exporter: memory (RSS)", memory_mib, MEMORY_FLOOR_MIB, "MiB"),
        ],
    )


def _scrape(url: str) -> tuple[float, int]:
    began_s = time.monotonic()
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read()
    return time.monotonic() - began_s, text.count(b"\n")


def _fixed_work() -> float:
    """Do the fixed work; return how long it took in seconds."""
    began_s = time.monotonic()
    lines = {f"fixed_{number}": f'fixed{{number="{number}"}} {number * 1.5}\n' for number in range(FIXED_LINES)}
    "".join(lines.values()).encode()
    return time.monotonic() - began_s


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


class _SlowNvml(ExportingNvml):
    """Calls take their time without the interpreter's lock, as those of a library in C do."""

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        function = super().__getattr__(symbol)
        if symbol not in CALLS_S:
            return function

        def call(*arguments: Any) -> Any:
            time.sleep(CALLS_S[symbol])
            return function(*arguments)

        return call


def _serve(folder: Path, slow_with_threads: int) -> None:
    """Run an exporter until this process is ended; print its port."""
    nvml = (_SlowNvml if slow_with_threads else ExportingNvml)(machine_of(GPUS))
    spread = partial(side_by_side, threads=slow_with_threads or THREADS)
    node = ExportingNode(folder, nvml, spread=spread)
    node.list(*(entry(f"pod-{n}", gpu_uuid(n), number=n) for n in range(GPUS)))
    for number, does in enumerate(nvml.activity):
        does.gpm = True
        does.utilization = 80
        does.processes = [FakeProcess(100 * number + at + 1, 1000, 40) for at in range(PROCESSES)]
        for process in does.processes:
            node.run(process.pid, pod_uid(number))
    node.program.start()
    leave_out_what_was_loaded()
    print(node.program.http.port, flush=True)
    while True:
        time.sleep(1.0)
        nvml.calls.clear()  # the fake keeps a list of all calls


if __name__ == "__main__":
    import structlog  # the port must be the first line of standard output, and log lines no part of it

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
