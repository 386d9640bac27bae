"""The plugin is killed at each step of file work; whatever comes next ends in the same state as without the crash.

The matrix: 11 operations with 8 + 8 + 6 + 7 + 4 + 6 + 3 + 4 + 7 + 3 + 6 = 62 steps (each write, rename and removal;
nothing is synced), five more with device metadata with 12 + 8 + 10 + 11 + 8 = 49 steps, and four more with effects on
the node (support.effects) with 20 + 14 + 7 + 14 = 55 steps. Killed in each step and after it: 332 crashes by SIGKILL.
After each the plugin starts again six times over copies of what was left: kubelet asks to prepare, the same with GPUs
that the driver numbered anew meanwhile, those while nobody asks, kubelet asks to unprepare, nobody asks (the start and
a sweep alone), and nobody asks while the claim is gone. With metadata a seventh time: the setting was turned off
meanwhile. 234 * 6 + 98 * 7 = 2,090 starts: `make test` takes a third of the crashes, and `make test-long` all of them.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from support.crashing_plugin import (
    BROKEN,
    CHECKPOINT,
    OPERATIONS,
    REFERENCE,
    node_in,
    renumbered_pool,
    sweep_orphans,
)
from support.effects import FOLDER
from support.plugin import PluginNode
from support.seeds import in_tiers

SPEC = "cdi/gpu.dracaena.dev-claim_claim-uid.json"
TESTS = Path(__file__).parent.parent

pytestmark = pytest.mark.xdist_group("one plugin that forks")

STEPS = {
    "prepare": 8,  # four files, each: write, rename
    "prepare-over-broken": 8,  # the copy that is set aside is one more, podlist.json stands already
    "prepare-after-reboot": 6,  # podlist.json stands already
    "prepare-in-place": 7,  # podlist.json is overwritten: no rename
    "unprepare": 4,  # podlist.json, two removals
    "unprepare-broken": 6,
    "unprepare-in-place": 3,
    "sweep": 4,
    "renumber": 7,  # the spec goes, checkpoint "aside", spec, checkpoint "done"
    "lose-a-gpu": 3,  # the same without the last two
    "find-it-again": 6,  # no spec to remove
    "prepare-with-metadata": 12,  # the document and its CDI spec are two more files
    "unprepare-with-metadata": 8,  # two more removals, and two folders
    "unprepare-broken-with-metadata": 10,
    "renumber-with-metadata": 11,
    "sweep-with-metadata": 8,
    "prepare-with-effects": 20,  # for each of two GPUs: a server, a client of it, and what is noted in the journal
    "unprepare-with-effects": 14,  # checkpoint "started", for each GPU two removals and a note
    "renumber-with-effects": 7,
    "sweep-with-effects": 14,
}
SAMPLE = 5
"""`make test` takes each fifth step; which one is first differs from operation to operation."""

FORMER = frozenset({"renumber", "renumber-with-metadata", "renumber-with-effects", "lose-a-gpu", "find-it-again"})
"""After those the checkpoint may remember nodes that the claim had for a while."""
EMPTY = {"pod-resources/podlist.json": b"[]\n"}


class Crashes(Protocol):
    def __call__(self, folder: Path, operation: str, moment: str, first: int = 1, stride: int = 1) -> list[Path]:
        """Kill an operation in its first of these steps, and each stride-th after it; return what each left."""
        ...


@pytest.fixture(scope="module")
def crashes() -> Iterator[Crashes]:
    """Run the crashing plugin and return the folder of each crash: one process for all, which forks for each."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "support.crashing_plugin"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # what it logs
        stderr=subprocess.PIPE,
        text=True,
    ) as plugin:
        assert plugin.stdin is not None
        assert plugin.stderr is not None
        asked, answers = plugin.stdin, plugin.stderr

        def crash(folder: Path, operation: str, moment: str, first: int = 1, stride: int = 1) -> list[Path]:
            asked.write(f"{operation} {moment} {first} {stride} {folder}\n")
            asked.flush()
            count = int(answers.readline())
            assert count == STEPS[operation]
            return [folder / str(step) for step in range(first, count + 1, stride)]

        yield crash
        asked.close()
        assert plugin.wait(60) == 0


def started_again(folder: Path, name: str, *, gone: bool = False, metadata: bool = False, **parts: Any) -> PluginNode:
    """Start the plugin over a copy of what a crash left, as the program does: half-written files go first."""
    copy = folder.with_name(f"{folder.name}-{name}")
    shutil.copytree(folder, copy)
    node = node_in(copy, gone=gone, device_metadata=metadata, **parts)
    for files in (node.checkpoint_files, node.ledger_files, node.podlist, node.specs, node.documents):
        files.remove_half_written()
    for half in (copy / FOLDER).glob(".*"):
        half.unlink()  # of the servers, which nobody lists
    return node


def state_of(node: PluginNode) -> dict[str, bytes]:
    """All files but the copy of a broken checkpoint, which must be whole, and the lock that readers in place take."""
    files = node.files()
    assert not [path for path in node.documents.folder.rglob("*") if path.is_dir() and not list(path.iterdir())]
    assert files.pop("pod-resources/.podlist.json.lock", b"") == b""
    assert files.pop(f"{CHECKPOINT}.broken", BROKEN) == BROKEN
    return files


def without_former(files: dict[str, bytes], operation: str) -> dict[str, bytes]:
    """The files, with what a checkpoint remembers of earlier nodes taken out where the operation leaves that."""
    read = decode_checkpoint(REFERENCE.uid, files.get(CHECKPOINT, b""))
    if operation not in FORMER or not isinstance(read, Checkpoint):
        return files
    prepared = dataclasses.replace(read.prepared, former=())
    return {**files, CHECKPOINT: encode_checkpoint(dataclasses.replace(read, prepared=prepared))}


def whole(tmp_path: Path, *, metadata: bool = False, **parts: Any) -> dict[str, bytes]:
    """What a preparation without a crash leaves."""
    node = node_in(tmp_path / f"whole-{metadata}-{len(parts)}", device_metadata=metadata, **parts)
    node.state.prepare(REFERENCE)
    return node.files()


@pytest.mark.parametrize("stride", in_tiers(SAMPLE, 1))
@pytest.mark.parametrize("moment", ["in", "after"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_a_crash_at_any_step_every_way_on_ends_as_without_it(
    tmp_path: Path, crashes: Crashes, operation: str, moment: str, stride: int
) -> None:
    first = 1 + (list(OPERATIONS).index(operation) + (moment == "after")) % stride
    metadata, effects = operation.endswith("-with-metadata"), operation.endswith("-with-effects")
    wanted = whole(tmp_path, metadata=metadata, effects=effects)
    renumbered = whole(tmp_path, metadata=metadata, effects=effects, pool=renumbered_pool())
    for folder in crashes(tmp_path / "crashed", operation, moment, first, stride):
        node = started_again(folder, "prepare", metadata=metadata, effects=effects)
        node.state.prepare(REFERENCE)
        node.sweeper.sweep()
        node.reporter.reconcile()
        assert without_former(state_of(node), operation) == wanted, folder

        # The driver numbered its GPUs anew while the plugin was away.
        node = started_again(folder, "renumbered", metadata=metadata, effects=effects, pool=renumbered_pool())
        node.state.prepare(REFERENCE)
        node.sweeper.sweep()
        node.reporter.reconcile()
        assert without_former(state_of(node), "renumber") == renumbered, folder

        node = started_again(folder, "renumbered-alone", metadata=metadata, effects=effects, pool=renumbered_pool())
        node.recovery.recover(node.pods.values())
        node.sweeper.sweep()
        assert node.files().get(SPEC) in (renumbered[SPEC], None, *stale_of_earlier_boot(folder, operation)), folder

        node = started_again(folder, "unprepare", metadata=metadata, effects=effects)
        node.state.unprepare(REFERENCE)
        node.reporter.reconcile()
        assert state_of(node) == EMPTY, folder

        node = started_again(folder, "alone", metadata=metadata, effects=effects)
        assert node.recovery.recover(node.pods.values())
        node.sweeper.sweep()
        node.reporter.reconcile()
        untouched = [_left_by(folder)] if operation == "prepare-after-reboot" else []
        assert without_former(state_of(node), operation) in (wanted, EMPTY, *untouched), folder

        node = started_again(folder, "gone", gone=True, effects=effects)
        sweep_orphans(node.folder, FileSteps(), effects=effects)
        node.reporter.reconcile()
        assert state_of(node) == EMPTY, folder

        if metadata:
            node = started_again(folder, "turned-off")
            node.state.prepare(REFERENCE)
            node.sweeper.sweep()
            node.reporter.reconcile()
            assert without_former(state_of(node), operation) in (wanted, whole(tmp_path)), folder


def stale_of_earlier_boot(folder: Path, operation: str) -> list[bytes | None]:
    """The spec that an earlier boot left: its claim holds nothing, and kubelet prepares it before it is used."""
    return [node_in(folder).files().get(SPEC)] if operation == "prepare-after-reboot" else []


def _left_by(folder: Path) -> dict[str, bytes]:
    """What a checkpoint of an earlier boot leaves in place while nobody asks: nothing is listed for it."""
    files = node_in(folder).files()
    kept = {name: data for name, data in files.items() if not Path(name).name.startswith(".")}
    return {**kept, **EMPTY}


@pytest.mark.parametrize("moment", ["in", "after"])
def test_no_crash_of_prepare_leaves_half_a_file(tmp_path: Path, crashes: Crashes, moment: str) -> None:
    wanted = whole(tmp_path, metadata=True)
    for folder in crashes(tmp_path / "crashed", "prepare-with-metadata", moment):
        for name, data in node_in(folder).files().items():
            if not Path(name).name.startswith("."):
                assert data == wanted[name] or b'"state":"started"' in data, (folder, name)
