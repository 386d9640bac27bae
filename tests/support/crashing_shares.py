"""Shares on a node where the plugin is killed by SIGKILL at any step, and what runs beside it with it or instead of it.

`python -m support.crashing_shares`, then lines `OPERATION HOLDS STRIDE FIRST PLANT FOLDER`. For each step of the
operation a child is forked whose plugin, the real parts on real files, kills itself there: no handler, no buffer, no
clean-up. Steps are those of file work (journal, request to the supervisor, CDI spec, podlist.json) and each change of
the driver (memory limit, interval of time slices). Meanwhile this process plays the node: the real supervisor on the
model of MPS, which serves what the child asks for. After the crash something else may die too (WAYS); then the node
goes on (NEXT), and what is wrong then is said. Answers each line with one of JSON: steps, cases, wrong.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dracaena.api import mps
from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mps import MpsPhase
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.topology import Topology
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.mps.planning.state import ComputeMode
from support.clock import SteppedClock
from support.crashing_plugin import KilledAt
from support.fake_memory_limits import CgroupTree
from support.mps_node import MpsNode
from support.plugin import (
    DRIVER,
    GPU_MEMORY_BYTES,
    NODE,
    FakeClaims,
    FakePods,
    claim_of,
    device_name,
    gpu_uuid,
    make_pod,
    reference_to,
    share_of,
    sharing_config,
)
from support.whole_plugin import PlayedNode, WholePlugin

GPU, GIB = gpu_uuid(0), 1 << 30
NAMES = ("one", "two")
MEMORY_GIB = {"one": 10, "two": 5}
BEFORE = TimeSliceInterval.MEDIUM
"""What an admin has set, which has to be there in the end."""
COUNT = "steps"
MACHINE = Machine(
    "node", (Gpu(uuid=GPU, index=0, minor=0, memory_bytes=GPU_MEMORY_BYTES),), Topology(1, (), (None,)), "615.10"
)
EMPTY = {"pod-resources/podlist.json": b"[]\n"}
GRACE_S = 600.0
"""How long kubelet and the API must both not know a claim before it is unprepared for them."""

Change = Callable[[Callable[[], None]], None]


class KilledAtAny(KilledAt):
    """Counts changes of the driver among its steps too."""

    def change(self, work: Callable[[], None]) -> None:
        self._step(work)

    @property
    def ends_here(self) -> bool:
        """Whether the process is killed after the step that is done now."""
        return self._after and self.done == self._at

    @property
    def ends_before_this(self) -> bool:
        """Whether it is killed in the next step."""
        return not self._after and self.done + 1 == self._at


class KeepsWhatIsSet(KilledAtAny):
    """A planted fault: limits of memory are not removed, nor is the interval put back."""


def _changes(steps: FileSteps) -> Change:
    return steps.change if isinstance(steps, KilledAtAny) else lambda work: work()


class DriverFiles:
    """What the driver of GPU 0 was told, in files that outlive the plugin. Implements LimitMemory and
    TimeSliceSetter.
    """

    def __init__(self, folder: Path, steps: FileSteps) -> None:
        self._limits, self._interval, self._change = folder / "limits", folder / "interval", _changes(steps)
        self._keeps = isinstance(steps, KeepsWhatIsSet)

    def load(self) -> None:
        """The driver is loaded: nothing is left of what it was told."""
        shutil.rmtree(self._limits, ignore_errors=True)
        self._limits.mkdir()
        self._interval.write_text(TimeSliceInterval.DEFAULT.value)

    def limit(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        path = self._limits / f"{gpu} {Path(cgroup).name}"
        if limit_bytes is None and self._keeps:
            return
        if limit_bytes is None:
            self._change(lambda: path.unlink(missing_ok=True))
        else:
            self._change(lambda: _put(path, str(limit_bytes)))

    def limits(self) -> dict[str, int]:
        """Return GiB by pod."""
        found = sorted(self._limits.iterdir())
        return {
            path.name.rpartition("-pod")[2].removesuffix("_uid.slice"): int(path.read_text()) // GIB for path in found
        }

    def read(self, gpu: str) -> TimeSliceInterval | None:
        del gpu
        return TimeSliceInterval(self._interval.read_text())

    def set(self, gpu: str, interval: TimeSliceInterval) -> None:
        del gpu
        if interval is not BEFORE or not self._keeps:
            self._change(lambda: _put(self._interval, interval.value))


def _put(path: Path, text: str) -> None:
    path.write_text(text)


class ServingClock(SteppedClock):
    """Lets the supervisor work while the plugin waits for it."""

    def __init__(self, serve: Callable[[], None]) -> None:
        super().__init__()
        self._serve = serve

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        self._serve()
        return event.wait(min(timeout_s, 0.001))


class SharedNode:
    """The node of one crash. `holds` is what the shares are held by: `2` or `3` (MPS by that protocol), `slices`."""

    def __init__(self, folder: Path, holds: str) -> None:
        self.folder, self.holds, self.boot = folder, holds, "boot-1"
        self.mps = MpsNode(folder / "m", 2 if holds == "2" else 3, gpus=(GPU,))
        self.tree = CgroupTree(folder / "cgroup")
        self.driver = DriverFiles(folder, FileSteps())
        self.driver.load()
        self.driver.set(GPU, BEFORE)
        self.claims = {name: self._claim(name) for name in NAMES}
        for name in NAMES:
            self.tree.add(f"{name}-uid")
        self.serve()  # it has said what it can do

    def _claim(self, name: str) -> ResourceClaim:
        result = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device_name(0)}
        by_mps = self.holds != "slices"
        share = share_of(f"{MEMORY_GIB[name]}Gi", 30 if by_mps else 0, share_id=f"share-of-{name}")
        said = {"strategy": "MPS"} if by_mps else {"strategy": "TimeSlicing", "interval": "Long"}
        allocation = {"results": [{**result, **share}], "config": [sharing_config(**said)]}
        return claim_of(name, allocation, reserved_for={name: f"{name}-uid"})

    def serve(self) -> None:
        """Let the supervisor look once."""
        self.mps.supervisor.step()
        self.mps.clock.advance(0.2)

    def plugin(
        self, steps: FileSteps | None = None, *, gone: bool = False, serve: Callable[[], None] | None = None
    ) -> WholePlugin:
        """Start the plugin over what is there. What a kill left of a request is on a tmpfs, and nobody is served by it:
        it goes first, and the program removes other half-written files itself.
        """
        for half in (Path(self.mps.places.root) / mps.REQUESTS).glob(".*.tmp"):
            half.unlink()
        steps = steps or FileSteps()
        driver, self.clock = DriverFiles(self.folder, steps), ServingClock(serve or self.serve)
        pods = [make_pod(name, {"main": [(name, "")]}, claims={name: name}) for name in NAMES]
        self.pods = FakePods(*(() if gone else pods))
        plugin = WholePlugin(
            PlayedNode(
                self.folder / "plugin",
                FakeClaims(*(() if gone else self.claims.values())),
                self.pods,
                self.clock,
                machine=lambda: MACHINE,
                intervals=driver,
                limiter=driver,
                cgroups=self.tree.root,
                boot=self.boot,
                settings={"mps_root": self.mps.places.root},
            ),
            steps,
        )
        plugin.start()
        return plugin

    def renew(self, node: WholePlugin) -> None:
        """What follows the first reading of the GPUs."""
        for each in node.rounds():
            with suppress(DracaenaError):
                each()

    def prepare(self, node: WholePlugin, *names: str) -> None:
        for name in names:
            node.state.prepare(reference_to(self.claims[name]))

    def unprepare(self, node: WholePlugin, *names: str) -> None:
        for name in names:
            node.state.unprepare(reference_to(self.claims[name]))

    # What must be so

    def wrong(self, node: WholePlugin, prepared: Sequence[str]) -> list[str]:
        """Return what is not as it must be when these claims are prepared and the others are not."""
        self.mps.settle()
        found = {name: node.checkpoint(reference_to(claim).uid) for name, claim in self.claims.items()}
        wrong = [f"checkpoint of {name}" for name in NAMES if (found[name] is not None) is not (name in prepared)]
        wrong += [f"{name} is not done" for name in prepared if not _is_done(found[name])]
        specs = sorted(path.name for path in (self.folder / "plugin" / "cdi").glob("*"))
        if len(specs) != len(prepared):
            wrong.append(f"CDI specs {specs}")
        limits = {name: MEMORY_GIB[name] for name in prepared}
        if self.driver.limits() != limits:
            wrong.append(f"limits {self.driver.limits()}, expected {limits}")
        return wrong + (self._wrong_slices(prepared) if self.holds == "slices" else self._wrong_mps(prepared))

    def _wrong_slices(self, prepared: Sequence[str]) -> list[str]:
        interval, wanted = self.driver.read(GPU), TimeSliceInterval.LONG if prepared else BEFORE
        if interval is wanted or (interval is TimeSliceInterval.DEFAULT and not prepared and self.is_reloaded):
            return []
        return [f"interval {interval}, expected {wanted}"]

    def _wrong_mps(self, prepared: Sequence[str]) -> list[str]:
        names = {
            name: mps.share_name(GPU, reference_to(self.claims[name]).uid, f"share-of-{name}") for name in prepared
        }
        statuses = self.mps.statuses()
        wrong = [] if statuses.keys() == set(names.values()) else [f"shares {sorted(statuses)}, expected {names}"]
        wrong += [f"{name} is not ready" for name in prepared if self.mps.phase(names[name]) is not MpsPhase.READY]
        mode = self.mps.world.modes[GPU]
        if mode is not (ComputeMode.EXCLUSIVE_PROCESS if prepared else ComputeMode.DEFAULT):
            wrong.append(f"compute mode {mode.name}")
        return wrong + ([] if prepared else self.mps.left())

    is_reloaded = False
    """Whether the driver's own interval may be what is left: what an admin has set is gone with the driver."""

    def nothing_left(self, node: WholePlugin) -> list[str]:
        """Return what is left when no claim is prepared."""
        node.reporter.reconcile()
        wrong = self.wrong(node, ())
        node.sweeper.sweep()
        wrong += [each for each in self.wrong(node, ()) if each not in wrong]
        files = node.files()
        requests = [path.name for path in (Path(self.mps.places.root) / mps.REQUESTS).iterdir()]
        return (
            wrong + [f"file {name}" for name in files if name not in EMPTY] + [f"request {name}" for name in requests]
        )


def _is_done(found: Mapping[str, Any] | None) -> bool:
    return found is not None and found.get("state") == "done"


# What is killed


def _none(_node: SharedNode) -> None:
    """Nothing was prepared."""


def _first(node: SharedNode) -> None:
    node.prepare(node.plugin(), "one")


def _both(node: SharedNode) -> None:
    node.prepare(node.plugin(), *NAMES)


OPERATIONS: Mapping[str, tuple[Callable[[SharedNode], None], str, str, tuple[str, ...]]] = {
    "first-comes": (_none, "prepare", "one", ()),
    "second-comes": (_first, "prepare", "two", ("one",)),
    "one-goes": (_both, "unprepare", "one", ("two",)),
    "last-goes": (_first, "unprepare", "one", ()),
}
"""What comes before, what is done with which claim, and which claims are prepared whatever becomes of that."""


# What dies with it


def _plugin_alone(_node: SharedNode) -> None:
    """Nothing else."""


def _supervisor(node: SharedNode) -> None:
    node.mps.start()


def _daemons(node: SharedNode) -> None:
    node.mps.world.kill_daemons()


def _container(node: SharedNode) -> None:
    node.mps.world.kill_all()
    node.mps.start()


def _driver(node: SharedNode) -> None:
    node.mps.world.reload_driver()
    node.driver.load()
    node.is_reloaded = True


def _reboot(node: SharedNode) -> None:
    _driver(node)
    node.boot = node.mps.boot = "boot-2"
    shutil.rmtree(node.mps.places.root)  # a tmpfs
    node.mps.start()
    node.serve()


WAYS = (_plugin_alone, _supervisor, _daemons, _container, _driver, _reboot)


# What comes next


def _asked_again(node: SharedNode, name: str, others: tuple[str, ...]) -> list[str]:
    """kubelet asks to prepare, after a reboot for all claims."""
    plugin = node.plugin()
    node.renew(plugin)
    node.prepare(plugin, *others, name)
    wrong = node.wrong(plugin, sorted({name, *others}))
    node.unprepare(plugin, name, *others)
    return wrong + node.nothing_left(plugin)


def _given_back(node: SharedNode, name: str, others: tuple[str, ...]) -> list[str]:
    """kubelet asks to unprepare: the share that was at work, then the other one."""
    plugin = node.plugin()
    node.renew(plugin)
    node.unprepare(plugin, name)
    wrong = [] if node.boot == "boot-2" else node.wrong(plugin, others)
    node.unprepare(plugin, *others)
    return wrong + node.nothing_left(plugin)


def _left_alone(node: SharedNode, name: str, others: tuple[str, ...]) -> list[str]:
    """Nobody asks: the claim is prepared or undone by the start alone. After a reboot nothing is in use."""
    plugin = node.plugin()
    node.renew(plugin)
    plugin.recovery.recover(node.pods.values())
    plugin.sweeper.sweep()
    wrong: list[str] = []
    if node.boot == "boot-1":
        done = _is_done(plugin.checkpoint(reference_to(node.claims[name]).uid))
        wrong = node.wrong(plugin, sorted({*others, *([name] if done else [])}))
    node.unprepare(plugin, name, *others)
    return wrong + node.nothing_left(plugin)


def _gone(node: SharedNode, name: str, others: tuple[str, ...]) -> list[str]:
    """Claims and pods were deleted meanwhile, and kubelet has forgotten them."""
    del name, others
    plugin = node.plugin(gone=True)
    plugin.sweeper.sweep()
    node.clock.gone_by_s += GRACE_S
    plugin.sweeper.sweep()
    return node.nothing_left(plugin)


NEXT = (_asked_again, _given_back, _left_alone, _gone)
MOMENTS = ("in", "after")


# Planted faults


class NotesLate(KilledAtAny):
    """What is written before a change of the driver, and what it says of that, comes after it: too late for a kill."""

    _note: tuple[Path, bytes | None] | None = None

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self._note = (target, target.read_bytes() if target.exists() else None)
        super().rename(source, target, folder)

    def change(self, work: Callable[[], None]) -> None:
        def first() -> None:
            work()
            if self.ends_here and self._note is not None:
                target, before = self._note
                target.unlink() if before is None else target.write_bytes(before)

        super().change(first)


class ForgetsFirst(KilledAtAny):
    """What is written after a change of the driver comes before it: nobody knows of a change that a kill prevents."""

    NOTES = 2
    """What is written of a change: in its record, and in the checkpoint."""

    def __init__(self, step: int, moment: str) -> None:
        super().__init__(step, moment)
        self._left: int | None = None

    def change(self, work: Callable[[], None]) -> None:
        if self.ends_before_this:
            self.done += 1
            self._left = self.NOTES
        elif self._left is None:
            super().change(work)

    def rename(self, source: Path, target: Path, folder: int) -> None:
        super().rename(source, target, folder)
        self._noted()

    def remove(self, path: Path, folder: int) -> None:
        super().remove(path, folder)
        self._noted()

    def _noted(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


PLANTS: Mapping[str, type[KilledAtAny]] = {
    "none": KilledAtAny,
    "effect-before-journal": NotesLate,
    "note-before-undo": ForgetsFirst,
    "keeps-what-is-set": KeepsWhatIsSet,
}


def _killed(node: SharedNode, operation: str, step: int, moment: str, plant: str) -> bool:
    """Whether a child was killed in its n-th step; else it has fewer, and says how many."""
    _, work, name, _ = OPERATIONS[operation]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            steps = PLANTS[plant](step, moment)
            plugin = node.plugin(steps, serve=lambda: None)
            getattr(node, work)(plugin, name)
            (node.folder / COUNT).write_text(str(steps.done))
            status = 0
        finally:
            os._exit(status)
    while True:
        ended, result = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        node.serve()
        time.sleep(0.0005)
    if os.WIFSIGNALED(result) and os.WTERMSIG(result) == signal.SIGKILL:
        return True
    if os.waitstatus_to_exitcode(result) != 0:
        raise RuntimeError(f"the child of step {step} of {operation} failed")
    return False


def _node_before(folder: Path, holds: str, operation: str) -> SharedNode:
    folder.mkdir(parents=True)
    node = SharedNode(folder, holds)
    OPERATIONS[operation][0](node)
    node.mps.settle()
    return node


def _cases(steps: int) -> list[tuple[int, str, int, int]]:
    ways, then = range(len(WAYS)), range(len(NEXT))
    return list(itertools.product(range(1, steps + 1), MOMENTS, ways, then))


def crashes(folder: Path, operation: str, holds: str, stride: int, first: int, plant: str) -> Mapping[str, Any]:
    """Run the crashes of one operation and return what was found."""
    whole = _node_before(folder / "whole", holds, operation)
    _killed(whole, operation, sys.maxsize, "in", plant)
    steps = int((whole.folder / COUNT).read_text())
    _, _, name, others = OPERATIONS[operation]
    count, wrong = 0, []
    for step, moment, way, then in _cases(steps)[first::stride]:
        node = _node_before(folder / f"{step}-{moment}-{way}-{then}", holds, operation)
        case = f"{operation} by {holds}, {moment} step {step}, {WAYS[way].__name__}, {NEXT[then].__name__}"
        count += 1
        if not _killed(node, operation, step, moment, plant):
            wrong.append(f"{case}: not killed")
            continue
        WAYS[way](node)
        try:
            found = NEXT[then](node, name, others)
        except DracaenaError as error:
            found = [str(error)]
        wrong += [f"{case}: {each}" for each in found]
        shutil.rmtree(node.folder)
    return {"steps": steps, "cases": count, "wrong": wrong}


if __name__ == "__main__":
    for line in sys.stdin:
        operation, holds, stride, first, plant, folder = line.rstrip("\n").split(" ", 5)
        answer = crashes(Path(folder), operation, holds, int(stride), int(first), plant)
        sys.stderr.write(json.dumps(answer) + "\n")  # its logs go to standard output
