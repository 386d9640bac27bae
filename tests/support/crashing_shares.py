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
from dracaena.api.mps import MpsPhase
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.kubelet_plugin.adapters.kernel.cgroups import Cgroups
from dracaena.kubelet_plugin.device_kinds.enforcement import NodeEnforcement
from dracaena.kubelet_plugin.device_kinds.mps_effect import MpsOffer
from dracaena.kubelet_plugin.device_kinds.table import kinds_on
from dracaena.kubelet_plugin.effects.claim_effects import ClaimEffects
from dracaena.kubelet_plugin.effects.memory_limits import MemoryLimits
from dracaena.kubelet_plugin.effects.mps_shares import MpsShares
from dracaena.kubelet_plugin.effects.time_slice_records import TimeSliceRecords
from dracaena.kubelet_plugin.effects.time_slices import TimeSlices, TimeSlicesBefore
from dracaena.kubelet_plugin.effects.unclaimed_time_slices import UnclaimedTimeSlices
from dracaena.kubelet_plugin.prepare.effects import MEMORY_LIMIT, MPS_SHARE, TIME_SLICE, TIME_SLICE_BEFORE, Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.store.claims import BOOT_MARK, NodeClaims
from dracaena.kubelet_plugin.upkeep.effect_renewal import EffectRenewal
from dracaena.kubelet_plugin.upkeep.sweeper import ORPHAN_GRACE_S
from dracaena.mps.planning.state import ComputeMode
from dracaena.process.clock import SystemClock
from support.crashing_plugin import KilledAt
from support.fake_memory_limits import CgroupTree
from support.mps_node import MpsNode
from support.plugin import (
    DRIVER,
    NODE,
    FakeClaims,
    FakePods,
    PluginNode,
    ThreadLock,
    claim_of,
    device_name,
    gpu_uuid,
    make_pod,
    reference_to,
    share_of,
    sharing_config,
)

GPU, GIB = gpu_uuid(0), 1 << 30
NAMES = ("one", "two")
MEMORY_GIB = {"one": 10, "two": 5}
BEFORE = TimeSliceInterval.MEDIUM
"""What an admin has set, which has to be there in the end."""
COUNT = "steps"
EMPTY = {"pod-resources/podlist.json": b"[]\n"}

Change = Callable[[Callable[[], None]], None]


class KilledAtAny(KilledAt):
    """Counts changes of the driver among its steps too."""

    def change(self, work: Callable[[], None]) -> None:
        self._step(work)


def _changes(steps: FileSteps) -> Change:
    return steps.change if isinstance(steps, KilledAtAny) else lambda work: work()


class DriverFiles:
    """What the driver of GPU 0 was told, in files that outlive the plugin. Implements MemoryLimiter and
    TimeSliceSetter.
    """

    def __init__(self, folder: Path, steps: FileSteps) -> None:
        self._limits, self._interval, self._change = folder / "limits", folder / "interval", _changes(steps)

    def load(self) -> None:
        """The driver is loaded: nothing is left of what it was told."""
        shutil.rmtree(self._limits, ignore_errors=True)
        self._limits.mkdir()
        self._interval.write_text(TimeSliceInterval.DEFAULT.value)

    def limit(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        path = self._limits / f"{gpu} {Path(cgroup).name}"
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
        self._change(lambda: _put(self._interval, interval.value))


def _put(path: Path, text: str) -> None:
    path.write_text(text)


class ServingClock(SystemClock):
    """Lets the supervisor work while the plugin waits for it."""

    def __init__(self, serve: Callable[[], None]) -> None:
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
    ) -> PluginNode:
        """Start the plugin over what is there, as the program does: half-written files go first."""
        steps, root = steps or FileSteps(), Path(self.mps.places.root)
        driver, cgroups = DriverFiles(self.folder, steps), Cgroups(str(self.tree.root))
        requests = DocumentFolder(root / mps.REQUESTS, steps=steps, synced=False)
        shares = MpsShares(
            root=str(root),
            requests=requests,
            statuses=DocumentFolder(root / mps.STATUS, synced=False),
            node=DocumentFolder(root, synced=False),
            is_running=lambda: True,
            boot_id=self.boot,
            clock=ServingClock(serve or self.serve),
        )
        marks = DocumentFolder(self.folder / "plugin", steps=steps, synced=False)
        records = self.records = TimeSliceRecords(marks, ThreadLock(), self.boot)
        on_node = NodeEnforcement(mps=MpsOffer(None, runs=True), memory_limits=None, time_slices=None)
        pods = [make_pod(name, {"main": [(name, "")]}, claims={name: name}) for name in NAMES]
        node = PluginNode(
            self.folder / "plugin",
            FakeClaims(*(() if gone else self.claims.values())),
            FakePods(*(() if gone else pods)),
            kind_of=kinds_on(lambda: on_node),
            means={
                MPS_SHARE: shares,
                MEMORY_LIMIT: MemoryLimits(driver, cgroups),
                TIME_SLICE_BEFORE: TimeSlicesBefore(driver, records),
                TIME_SLICE: TimeSlices(driver),
            },
            boot_id=self.boot,
            steps=steps,
        )
        for files in (node.checkpoint_files, node.podlist, node.specs, marks, requests):
            with suppress(DracaenaError):
                files.remove_half_written()
        node.recovery.enter_boot()
        return node

    def renew(self, node: PluginNode) -> None:
        """What follows the first reading of the GPUs."""
        EffectRenewal(
            opened=lambda: 1,
            claims=node.node_claims,
            effects=node.effects,
            users_known=lambda: True,
            pods_of=node.reporter.users_of,
            pods_now=node.reporter.users_now,
            tell=lambda *_: None,
            clock=node.clock,
        ).look()

    def prepare(self, node: PluginNode, *names: str) -> None:
        for name in names:
            node.state.prepare(reference_to(self.claims[name]))

    def unprepare(self, node: PluginNode, *names: str) -> None:
        for name in names:
            node.state.unprepare(reference_to(self.claims[name]))

    # What must be so

    def wrong(self, node: PluginNode, prepared: Sequence[str]) -> list[str]:
        """Return what is not as it must be when these claims are prepared and the others are not."""
        self.mps.settle()
        found = {name: node.node_claims.of(reference_to(claim).uid) for name, claim in self.claims.items()}
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

    def nothing_left(self, node: PluginNode) -> list[str]:
        """Return what is left when no claim is prepared."""
        node.reporter.reconcile()
        wrong = self.wrong(node, ())
        UnclaimedTimeSlices(
            records=self.records,
            before=TimeSlicesBefore(self.driver, self.records),
            claims=node.node_claims,
            gpu_lock=lambda _gpu: ThreadLock(),
        ).restore()
        wrong += [each for each in self.wrong(node, ()) if each not in wrong]
        files = {name: data for name, data in node.files().items() if name != BOOT_MARK}
        requests = [path.name for path in (Path(self.mps.places.root) / mps.REQUESTS).iterdir()]
        return (
            wrong + [f"file {name}" for name in files if name not in EMPTY] + [f"request {name}" for name in requests]
        )


def _is_done(found: object) -> bool:
    return isinstance(found, Checkpoint) and found.state is State.DONE


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
    plugin.recovery.recover(plugin.pods.values())
    plugin.sweeper.sweep()
    wrong: list[str] = []
    if node.boot == "boot-1":
        done = _is_done(plugin.node_claims.of(reference_to(node.claims[name]).uid))
        wrong = node.wrong(plugin, sorted({*others, *([name] if done else [])}))
    node.unprepare(plugin, name, *others)
    return wrong + node.nothing_left(plugin)


def _gone(node: SharedNode, name: str, others: tuple[str, ...]) -> list[str]:
    """Claims and pods were deleted meanwhile, and kubelet has forgotten them."""
    del name, others
    plugin = node.plugin(gone=True)
    plugin.sweeper.sweep()
    plugin.clock.advance(ORPHAN_GRACE_S)
    plugin.sweeper.sweep()
    return node.nothing_left(plugin)


NEXT = (_asked_again, _given_back, _left_alone, _gone)
MOMENTS = ("in", "after")


# Planted faults


def _plant_note_before_undo() -> None:
    """The journal forgets an effect before it is undone."""

    def hasty(self: ClaimEffects, uid: Any, left: Sequence[Effect]) -> None:
        for effect in reversed(left):
            others = self._others(uid, effect)
            self._note(uid, effect, None)
            self._means_of(effect).undo(effect, others)

    ClaimEffects._undo_each = hasty  # type: ignore[method-assign]


def _plant_effect_before_journal() -> None:
    """An effect is made before it is journaled."""
    start = NodeClaims.start

    def hasty(self: NodeClaims, prepared: PreparedClaim, *, lost: bool = False) -> Checkpoint:
        for effect in prepared.effects:
            if effect.kind == MEMORY_LIMIT:
                _planted_means[MEMORY_LIMIT].apply(effect, ())
        return start(self, prepared, lost=lost)

    NodeClaims.start = hasty  # type: ignore[method-assign]


_planted_means: dict[str, MemoryLimits] = {}
PLANTS: Mapping[str, Callable[[], None]] = {
    "none": lambda: None,
    "note-before-undo": _plant_note_before_undo,
    "effect-before-journal": _plant_effect_before_journal,
}


def _killed(node: SharedNode, operation: str, step: int, moment: str, plant: str) -> bool:
    """Whether a child was killed in its n-th step; else it has fewer, and says how many."""
    _, work, name, _ = OPERATIONS[operation]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            steps = KilledAtAny(step, moment)
            plugin = node.plugin(steps, serve=lambda: None)
            means = plugin.means[MEMORY_LIMIT]
            assert isinstance(means, MemoryLimits)
            _planted_means[MEMORY_LIMIT] = means
            PLANTS[plant]()
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
