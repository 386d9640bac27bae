"""Shares of GPUs on a node that can hold them in each way: how long a prepare takes, and what a thousand leave behind.

The plugin (sharing_plugin.py) and `dracaena mps` are processes; the supervisor runs a fake nvidia-cuda-mps-control,
whose daemon and servers are processes, too. It speaks protocol 3 and has the pauses of a node.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from bench.node import measure
from bench.node.driver import Dracaena, NodeDriver, Usage, usage_of
from bench.node.ground import Claim, Ground, Part
from bench.node.sharing_plugin import SharingFolders
from bench.report import Floor, Row
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.mps.adapters.control_program import PROGRAM
from dracaena.mps.planning.state import ComputeMode
from dracaena.mps.program import CHECK_S, POLL_S
from support.fake_memory_limits import CgroupTree
from support.mps_process import SupervisedNode

MOST_CALLS: Final = 200
"""Of a row: a share takes some tenths of a second, and with 200 of them p99 is not the slowest one."""

CLAIMS: Final = 8
"""That take turns in a row."""

CALL_FLOOR_MS, CALL_GOAL_MS = 1000.0, 500.0
"""Of a share whose server runs. The pod waits for it beside all else that kubelet does for a pod, which takes a second
or two: not as long again. The goal is one look of the supervisor (0.2 s), one of the plugin (0.1 s), and eight commands
of the control program at 25 ms, of which the fake one needs most to start Python."""

SERVER_FLOOR_MS, SERVER_GOAL_MS = 2000.0, 1000.0
"""Of the first share of a GPU, whose server is started: thirteen commands, and more looks between them."""

COMMANDS: Final = 50
"""To see what one of the fake control program takes."""

LATE: Final = 4
"""Descriptors that may come late: a connection to the API, when more is done at once than before. Far fewer than there
are cycles, so that one left by each is found."""

SHOWN: Final = 10
"""Names of what is left, of each kind."""

MIB: Final = 1024 * 1024

MPS = Part("4Gi", 30, {"strategy": "MPS"})
SLICES = Part("4Gi", sharing={"strategy": "TimeSlicing", "interval": "Long"})
MEMORY = Part("4Gi")

GPU_OF: Final = {"beside": 0, "first": 1, "time slices": 2, "memory limit": 3, "whole GPU": 4}
"""Each kind of claim has a GPU of its own; on that of `beside` another share is held."""

PARTS: Final = {"beside": MPS, "first": MPS, "time slices": SLICES, "memory limit": MEMORY, "whole GPU": None}

WORDS: Final = {
    "whole GPU": "a whole GPU",
    "beside": "a share by MPS, its server runs",
    "first": "a share by MPS, its server starts",
    "time slices": "a share by time slices and memory limit",
    "memory limit": "a share by memory limit",
}


class SharingPlugin(Dracaena):
    """Our plugin beside an MPS supervisor, on NVML of driver R615."""

    def __init__(self, folder: Path, kubeconfig: Path, machine: str, mps_root: str) -> None:
        super().__init__(folder, kubeconfig, machine)
        self.places = SharingFolders(folder)
        self.tree = CgroupTree(self.places.cgroups)
        self._mps_root = mps_root

    def command(self) -> Sequence[str]:
        """Return the command line."""
        own = (str(self.folder), str(self._kubeconfig), self._machine, self._mps_root, self.take_address())
        return (sys.executable, "-P", "-m", "bench.node.sharing_plugin", *own)


@dataclass(frozen=True)
class SharingNode:
    """Plugin and supervisor, both running."""

    plugin: SharingPlugin
    supervisor: SupervisedNode

    def left(self) -> Mapping[str, frozenset[str]]:
        """Return by kind what there is now that a share may bring, by name."""
        root = Path(self.supervisor.places.root)
        intervals = {path.name: path.read_text().strip() for path in self.plugin.places.intervals.glob("GPU-*")}
        modes = self.supervisor.modes.all().items()
        return {
            "files and folders": frozenset(filter(_may_not_stay, self.plugin.files() | set(map(str, root.rglob("*"))))),
            "GPUs with an interval": frozenset(gpu for gpu, interval in intervals.items() if interval != "Default"),
            "GPUs with a compute mode": frozenset(gpu for gpu, mode in modes if mode is not ComputeMode.DEFAULT),
            "processes": frozenset(str(process.pid) for process in self.supervisor.table.find()) | self._children(),
        }

    def usages(self) -> Mapping[str, Usage]:
        """Return what both programs use now."""
        assert self.supervisor.process is not None
        return {"plugin": self.plugin.usage(), "supervisor": usage_of(self.supervisor.process.pid)}

    def _children(self) -> frozenset[str]:
        """Return the children of both programs: a control program or an nvidia-smi that nobody has waited for."""
        assert self.supervisor.process is not None
        pids = (self.plugin.pid, self.supervisor.process.pid)
        lists = (path.read_text() for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/children"))
        return frozenset(" ".join(lists).split())


def _may_not_stay(path: str) -> bool:
    """Whether a file is not one of those that come once and stay: a lock a GPU, and what the fake nvidia-smi notes."""
    return Path(path).parts[-2:] != ("state", "calls") and not path.endswith(".lock")


@contextmanager
def sharing_node(folder: Path, kubeconfig: Path, machine: str, ground: Ground) -> Iterator[SharingNode]:
    """Run both inside a block. The supervisor's folder is a short one, because sockets lie below it."""
    gpus = tuple(gpu.uuid for gpu in read_machine(machine).gpus)
    with tempfile.TemporaryDirectory(prefix="m") as root, tempfile.TemporaryDirectory(prefix="driver-") as driver:
        supervisor = SupervisedNode(root, Path(driver), 3, gpus, check_s=CHECK_S, poll_s=POLL_S)
        try:
            supervisor.start()
            ground.delete_slices()
            with SharingPlugin(folder, kubeconfig, machine, root).start(ground.published_devices) as plugin:
                yield SharingNode(plugin, supervisor)
        finally:
            supervisor.kill_all()


def claims_of(ground: Ground, node: SharingNode, kind: str, count: int) -> list[Claim]:
    """Make claims of a kind, their pods, and the cgroups of these."""
    device = node.plugin.devices[GPU_OF[kind]]
    made = [ground.claim(f"{kind.replace(' ', '-').lower()}-{n}", device, PARTS[kind]) for n in range(count)]
    for claim in made:
        node.plugin.tree.add(claim.pod_uid)
    return made


def measure_calls(
    node: SharingNode, claims: Mapping[str, Sequence[Claim]], count: int, *, pause_s: float, tell: Callable[[str], None]
) -> Mapping[str, measure.Calls]:
    """Prepare and unprepare claims of each kind, one call after the other."""
    found = {}
    for kind in WORDS:
        tell(f"{count} calls for {WORDS[kind]}")
        timed = list(islice(cycle(claims[kind]), count))
        found[kind] = measure.calls(node.plugin, timed, pause_s=pause_s)
    return found


def command_s(node: SharingNode) -> Sequence[float]:
    """Return how long some commands of the fake control program took that ask its daemon nothing."""
    program = node.supervisor.fake.root / "usr" / "bin" / PROGRAM
    took = []
    for _ in range(COMMANDS):
        began_s = time.perf_counter()
        subprocess.run([program, "-p", "3", "-h"], stdout=subprocess.DEVNULL, check=True)
        took.append(time.perf_counter() - began_s)
    return took


def rows_of_calls(found: Mapping[str, measure.Calls]) -> tuple[list[Row], list[Floor]]:
    """Return the figures of shares beside those of whole GPUs, and what a release must keep."""
    rows, whole = [], found["whole GPU"]
    for kind, calls in found.items():
        for operation in ("prepare", "unprepare"):
            for percent in (50, 99):
                mine = measure.percentile_ms(getattr(calls, f"{operation}_s"), percent)
                other = measure.percentile_ms(getattr(whole, f"{operation}_s"), percent)
                beside = {} if calls is whole else {"theirs": other, "against": "a whole GPU"}
                rows.append(Row(f"{operation} of {WORDS[kind]}, p{percent}", mine, unit="ms", **beside))  # type: ignore[arg-type]
    floors = [
        _floor(found, "beside", CALL_FLOOR_MS, CALL_GOAL_MS),
        _floor(found, "first", SERVER_FLOOR_MS, SERVER_GOAL_MS),
    ]
    return rows, floors


def _floor(found: Mapping[str, measure.Calls], kind: str, floor_ms: float, goal_ms: float) -> Floor:
    took_ms = measure.percentile_ms(found[kind].prepare_s, 99)
    return Floor(f"prepare of {WORDS[kind]}, p99", took_ms, floor_ms, "ms", goal_ms)


def leak(
    node: SharingNode,
    claims: Mapping[str, Claim],
    cycles: int,
    before: Mapping[str, frozenset[str]],
    tell: Callable[[str], None],
) -> list[Floor]:
    """Prepare and unprepare shares of all kinds at once, `cycles` in all; return what is more then. A share that stays
    keeps one server up. `before` is what was left before the first share of the others, because a second cycle of a
    claim leaves the same names as the first. What the programs use is compared with what they used after some cycles.
    """
    _cycles(node.plugin, claims, min(measure.WARM_CYCLES, cycles))
    usages = node.usages()
    _cycles(node.plugin, claims, cycles)
    deadline_s = time.monotonic() + measure.LOOK_FOR_S
    while True:
        left = node.left()
        found = more(before, left, usages, node.usages(), f"after {cycles:,} cycles of shares")
        if all(floor.holds for floor in found) or time.monotonic() > deadline_s:
            break
        time.sleep(1.0)
    for kind, names in left.items():
        for name in sorted(names - before[kind])[:SHOWN]:
            tell(f"{kind}: {name}")
    return found


def more(
    before: Mapping[str, frozenset[str]],
    after: Mapping[str, frozenset[str]],
    usages: Mapping[str, Usage],
    usages_after: Mapping[str, Usage],
    what: str,
) -> list[Floor]:
    """Return what is more than before: what is left on the node by name, what the programs use by number."""
    floors = [Floor(f"{kind} more {what}", len(after[kind] - before[kind]), 0) for kind in before]
    for program, usage in usages.items():
        now = usages_after[program]
        grown = (now.rss_bytes - usage.rss_bytes) / MIB
        floors += [
            Floor(f"{program}: descriptors more {what}", now.descriptors - usage.descriptors, LATE),
            Floor(f"{program}: threads more or fewer {what}", abs(now.threads - usage.threads), 0),
            Floor(f"{program}: memory more {what}", grown, measure.LEAK_FLOOR_MIB, "MiB"),
        ]
    return floors


def _cycles(driver: NodeDriver, claims: Mapping[str, Claim], count: int) -> None:
    """As kubelet does for pods that come and go at once: one thread a claim."""
    each = -(-count // len(claims))

    def run(claim: Claim) -> None:
        for _ in range(each):
            driver.prepare(claim)
            driver.unprepare(claim)

    with ThreadPoolExecutor(len(claims)) as threads:
        list(threads.map(run, claims.values()))
    time.sleep(measure.SETTLE_S)
