"""A plugin that is killed in the middle: `python -m support.crashing_plugin`, then lines
`OPERATION MOMENT FIRST STRIDE FOLDER`.

For the first of these steps of file work of the operation, and each STRIDE-th after it, it forks a child that works
below FOLDER/<step> and kills itself there with SIGKILL: no handler, no buffer, no clean-up. MOMENT says when: `in` the
step (a write in the middle of it, all else just before) or `after` it. Answers each line with the number of all steps,
as a child that is not killed counts them. Forking from one plain process is quick and, as it has no threads, safe; what
no operation leaves in it is left to the next.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from dracaena.kubelet_plugin.upkeep.sweeper import ORPHAN_GRACE_S
from support.effects import ServerFiles, served
from support.plugin import FakeClaims, FakePods, PluginNode, make_claim, make_pod, make_pool, reference_to

CLAIM = make_claim(devices=(0, 1), reserved_for={"pod": "pod-uid"})
REFERENCE = reference_to(CLAIM)
CHECKPOINT = "claims/claim-uid.json"
BROKEN = b"no checkpoint"


class KilledAt(FileSteps):
    """Ends the process in its n-th step or after it."""

    def __init__(self, step: int, moment: str) -> None:
        self._at = step
        self._after = moment == "after"
        self.done = 0
        """Steps until now."""

    def write(self, descriptor: int, data: bytes) -> None:
        if self.done + 1 == self._at and not self._after:
            os.write(descriptor, data[: len(data) // 2])
        self._step(lambda: super(KilledAt, self).write(descriptor, data))

    def fsync(self, descriptor: int) -> None:
        self._step(lambda: super(KilledAt, self).fsync(descriptor))

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self._step(lambda: super(KilledAt, self).rename(source, target, folder))

    def remove(self, path: Path, folder: int) -> None:
        self._step(lambda: super(KilledAt, self).remove(path, folder))

    def remove_folder(self, path: Path) -> None:
        self._step(lambda: super(KilledAt, self).remove_folder(path))

    def _step(self, work: Callable[[], None]) -> None:
        self.done += 1
        if self.done == self._at and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        work()
        if self.done == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def node_in(
    folder: Path, steps: FileSteps | None = None, *, gone: bool = False, effects: bool = False, **settings: Any
) -> PluginNode:
    """A plugin over the files of a folder. `gone`: claim and pod were deleted meanwhile. `effects`: its GPUs need a
    server each, which outlives the plugin.
    """
    claims, pods = (FakeClaims(), FakePods()) if gone else (FakeClaims(CLAIM), FakePods(make_pod()))
    steps = steps or FileSteps()
    if effects:
        settings = {"kind_of": served, "kinds": [ServerFiles(folder, steps)], **settings}
    return PluginNode(folder, claims, pods, steps=steps, **settings)


def _nothing(folder: Path) -> None:
    """Arranges a node on which nothing was ever prepared."""


def _prepared(folder: Path) -> None:
    node_in(folder).state.prepare(REFERENCE)


def _broken(folder: Path) -> None:
    _prepared(folder)
    (folder / CHECKPOINT).write_bytes(BROKEN)


def _of_earlier_boot(folder: Path) -> None:
    node_in(folder, boot_id="boot-0").state.prepare(REFERENCE)


def _prepare(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps).state.prepare(REFERENCE)


def _prepare_in_place(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps, podlist_in_place=True).state.prepare(REFERENCE)


def _prepare_with_metadata(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps, device_metadata=True).state.prepare(REFERENCE)


def _with_metadata(folder: Path) -> None:
    _prepare_with_metadata(folder, FileSteps())


def _broken_with_metadata(folder: Path) -> None:
    _with_metadata(folder)
    (folder / CHECKPOINT).write_bytes(BROKEN)


def _unprepare_in_place(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps, podlist_in_place=True).state.unprepare(REFERENCE)


def _unprepare(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps).state.unprepare(REFERENCE)


def _prepare_with_effects(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps, effects=True).state.prepare(REFERENCE)


def _with_effects(folder: Path) -> None:
    _prepare_with_effects(folder, FileSteps())


def _unprepare_with_effects(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps, effects=True).state.unprepare(REFERENCE)


def _sweep_with_effects(folder: Path, steps: FileSteps) -> None:
    sweep_orphans(folder, steps, effects=True)


def _renumber_with_effects(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps, pool=renumbered_pool(), effects=True).recovery.follow_devices()


def sweep_orphans(folder: Path, steps: FileSteps, *, effects: bool = False) -> None:
    """Sweep on a node whose claim is gone, until its time is over."""
    node = node_in(folder, steps, gone=True, effects=effects)
    node.sweeper.sweep()
    node.clock.advance(ORPHAN_GRACE_S)
    node.sweeper.sweep()


def renumbered_pool() -> PublishedPool:
    """The node's GPUs in another order: each has another minor than before."""
    before = make_pool()
    count = len(before.gpus)
    gpus = {
        name: dataclasses.replace(gpu, minor=(n + 2) % count, index=(n + 2) % count)
        for n, (name, gpu) in enumerate(before.gpus.items())
    }
    return dataclasses.replace(before, gpus=gpus)


def _renumber(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps, pool=renumbered_pool()).recovery.follow_devices()


def _renumber_with_metadata(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps, pool=renumbered_pool(), device_metadata=True).recovery.follow_devices()


def _lose_a_gpu(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps, pool=make_pool(1)).recovery.follow_devices()


def _set_aside(folder: Path) -> None:
    _prepared(folder)
    _lose_a_gpu(folder, FileSteps())


def _find_it_again(folder: Path, steps: FileSteps) -> None:
    node_in(folder, steps).recovery.follow_devices()


OPERATIONS: Mapping[str, tuple[Callable[[Path], None], Callable[[Path, FileSteps], None]]] = {
    "prepare": (_nothing, _prepare),
    "prepare-over-broken": (_broken, _prepare),
    "prepare-after-reboot": (_of_earlier_boot, _prepare),
    "prepare-in-place": (_nothing, _prepare_in_place),
    "unprepare": (_prepared, _unprepare),
    "unprepare-broken": (_broken, _unprepare),
    "unprepare-in-place": (_prepared, _unprepare_in_place),
    "renumber": (_prepared, _renumber),
    "lose-a-gpu": (_prepared, _lose_a_gpu),
    "find-it-again": (_set_aside, _find_it_again),
    "sweep": (_prepared, sweep_orphans),
    "prepare-with-metadata": (_nothing, _prepare_with_metadata),
    "unprepare-with-metadata": (_with_metadata, _unprepare),
    "unprepare-broken-with-metadata": (_broken_with_metadata, _unprepare),
    "renumber-with-metadata": (_with_metadata, _renumber_with_metadata),
    "sweep-with-metadata": (_with_metadata, sweep_orphans),
    "prepare-with-effects": (_nothing, _prepare_with_effects),
    "unprepare-with-effects": (_with_effects, _unprepare_with_effects),
    "renumber-with-effects": (_with_effects, _renumber_with_effects),
    "sweep-with-effects": (_with_effects, _sweep_with_effects),
}
"""What comes before, and what is killed."""


FAILED = 255
"""Exit status of a child that raised; any other is the number of its steps."""


def _child(folder: Path, operation: str, steps: KilledAt) -> int:
    """Return how a child ended that was to be killed at a step, as subprocess does: negative for a signal."""
    arrange, work = OPERATIONS[operation]
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            arrange(folder)
            work(folder, steps)
            status = steps.done
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _crashes(folder: Path, operation: str, moment: str, first: int, stride: int) -> int:
    count = _child(folder / "whole", operation, KilledAt(FAILED, moment))
    if not 0 < count < FAILED:
        raise RuntimeError(f"{operation} ended with {count}")
    for step in range(first, count + 1, stride):
        if _child(folder / str(step), operation, KilledAt(step, moment)) != -signal.SIGKILL:
            raise RuntimeError(f"{operation} was not killed in step {step} of {count}")
    return count


if __name__ == "__main__":
    for line in sys.stdin:
        operation, moment, first, stride, folder = line.rstrip("\n").split(" ", 4)
        count = _crashes(Path(folder), operation, moment, int(first), int(stride))
        sys.stderr.write(f"{count}\n")  # its logs go to standard output
