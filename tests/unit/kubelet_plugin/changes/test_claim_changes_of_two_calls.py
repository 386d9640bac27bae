"""Two calls for the same claim, as when kubelet repeats one that took too long, or a second pod comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.kubelet_plugin.changes.change import Act
from dracaena.kubelet_plugin.changes.claim_changes import MAX_WAITING
from dracaena.kubelet_plugin.claims import recovery
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from support.effects import FOLDER, ServerFiles, client, served
from support.killed_steps import KilledSteps, StopError
from support.kube import wait_for
from support.plugin import FakeClaims, PluginNode, ThreadLock, device_name, make_claim, make_share, reference_to

CLAIM = make_claim(devices=(0,))
REFERENCE = reference_to(CLAIM)


def nothing() -> None:
    return


class Interrupted(ThreadLock):
    """A GPU's lock; another call comes when one is about to take it, or has just given it up, once each."""

    def __init__(self, *, before: Callable[[], object] = nothing, after: Callable[[], object] = nothing) -> None:
        super().__init__()
        self._before, self._after = before, after

    @contextmanager
    def hold(self, within_s: float | None = None) -> Iterator[None]:
        before, self._before = self._before, nothing
        before()
        try:
            with super().hold(within_s):
                yield
        finally:
            after, self._after = self._after, nothing
            after()


def busy_lock() -> ThreadLock:
    """A GPU's lock that is never free."""
    lock = ThreadLock()
    assert lock._lock.acquire()
    return lock


class FailsAt(ServerFiles):
    """Starts no server at the nth time of asking."""

    def __init__(self, folder: Path, *times: int) -> None:
        super().__init__(folder, FileSteps())
        self.times, self.tries = times, 0

    def apply(self, act: Act[frozenset[str]]) -> None:
        self.tries += 1
        if self.tries in self.times:
            raise TemporaryError("the server does not start")
        super().apply(act)


def node_with(folder: Path, means: ServerFiles, lock: ThreadLock | None = None, port: int = 1) -> PluginNode:
    return PluginNode(
        folder,
        FakeClaims(CLAIM),
        kind_of=lambda name, share: served(name, share, port=port),
        kinds=[means],
        gpu_locks={device_name(0): lock or ThreadLock()},
    )


def is_done(node: PluginNode) -> bool:
    """Whether the claim is prepared, and all that it needs is there."""
    found = node.node_claims.of(REFERENCE.uid)
    if not isinstance(found, Checkpoint) or found.state is not State.DONE:
        return False
    there = {name.partition("/")[2] for name in node.files() if name.startswith(f"{FOLDER}/")}
    wanted = {name for effect in found.prepared.wants for name in (effect.gpu, client(effect.parameters))}
    return there == wanted and "cdi/gpu.dracaena.dev-claim_claim-uid.json" in node.files()


def test_a_call_that_fails_does_not_take_back_what_the_next_one_answered(tmp_path: Path) -> None:
    node = node_with(tmp_path, FailsAt(tmp_path, 1), Interrupted(after=lambda: node.state.prepare(REFERENCE)))
    with pytest.raises(TemporaryError, match="does not start"):
        node.state.prepare(REFERENCE)
    assert is_done(node)


def test_what_another_call_answered_while_this_one_waited_is_answered_without_a_further_try(tmp_path: Path) -> None:
    means = FailsAt(tmp_path, 2)
    answers: list[object] = []
    node = node_with(tmp_path, means, Interrupted(before=lambda: answers.append(node.state.prepare(REFERENCE))))
    assert [node.state.prepare(REFERENCE)] == answers
    assert means.tries == 1
    assert is_done(node)


def test_a_call_with_another_plan_does_not_undo_what_was_answered_meanwhile(tmp_path: Path) -> None:
    other = node_with(tmp_path, ServerFiles(tmp_path, FileSteps()), port=2)
    lock = Interrupted(before=lambda: other.state.prepare(REFERENCE))
    node = node_with(tmp_path, ServerFiles(tmp_path, FileSteps()), lock)
    (effect,) = node.state.prepare(REFERENCE).wants
    assert effect.parameters["port"] == 2
    assert is_done(node)


def test_an_effect_that_a_call_with_another_plan_took_from_the_journal_is_not_made(tmp_path: Path) -> None:
    other = node_with(tmp_path, FailsAt(tmp_path, 1), port=2)

    def other_call() -> None:
        with pytest.raises(TemporaryError, match="does not start"):
            other.state.prepare(REFERENCE)

    node = node_with(tmp_path, ServerFiles(tmp_path, FileSteps()), Interrupted(before=other_call))
    with pytest.raises(TemporaryError, match="another call settled"):
        node.state.prepare(REFERENCE)
    assert [name for name in node.files() if name.startswith((FOLDER, "claims/", "cdi/"))] == []


class PlannedAnew(ServerFiles):
    """While its first server starts, a call with another plan begins and has to wait for the GPU."""

    def apply(self, act: Act[frozenset[str]]) -> None:
        other = node_with(self.folder, self, busy_lock(), port=2)
        with pytest.raises(TemporaryError, match="is busy: another call has the lock"):
            other.state.prepare(REFERENCE)
        super().apply(act)


def test_no_claim_is_answered_with_an_effect_that_was_planned_meanwhile_and_is_not_made(tmp_path: Path) -> None:
    node = node_with(tmp_path, PlannedAnew(tmp_path, FileSteps()))
    with pytest.raises(TemporaryError, match="was planned again"):
        node.state.prepare(REFERENCE)
    assert [name for name in node.files() if name.startswith((FOLDER, "claims/", "cdi/"))] == []


def test_a_start_does_not_take_back_what_was_prepared_since_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StopError):
        PluginNode(tmp_path, FakeClaims(CLAIM), steps=KilledSteps(3)).state.prepare(REFERENCE)
    node = node_with(tmp_path, ServerFiles(tmp_path, FileSteps()))
    node.claims.by_key.clear()
    logged = recovery.log

    class CallInBetween:
        """Kubelet's call comes after the start has found that the claim is gone."""

        def info(self, event: str, **fields: Any) -> None:
            if event == "unfinished preparation undone":
                node.claims.put(CLAIM)
                node.state.prepare(REFERENCE)

        def __getattr__(self, name: str) -> Any:
            return getattr(logged, name)

    monkeypatch.setattr(recovery, "log", CallInBetween())
    assert node.recovery.recover(())
    assert is_done(node)


class CountedLock(ThreadLock):
    """Counts the calls that wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self._counts = threading.Lock()

    @contextmanager
    def hold(self, within_s: float | None = None) -> Iterator[None]:
        with self._counts:
            self.waiting += within_s != 0.0
        with super().hold(within_s):
            yield


def test_calls_that_wait_for_a_gpu_leave_workers_for_claims_of_others(tmp_path: Path) -> None:
    shares = [make_share(f"c{n}", memory="1Gi") for n in range(MAX_WAITING + 1)]
    free = make_share("free", gpu=1)
    lock = CountedLock()
    node = PluginNode(
        tmp_path,
        FakeClaims(*shares, free),
        kind_of=served,
        kinds=[ServerFiles(tmp_path, FileSteps())],
        gpu_locks={device_name(0): lock},
    )

    with ThreadPoolExecutor(MAX_WAITING + 2) as workers:

        def call(number: int) -> Future[PreparedClaim]:
            return workers.submit(node.state.prepare, reference_to(shares[number]), within_s=60.0)

        with lock.hold():
            lock.waiting = 0
            waiting = [call(number) for number in range(MAX_WAITING)]
            wait_for(lambda: lock.waiting == MAX_WAITING, "all wait")
            with pytest.raises(TemporaryError, match=f"{device_name(0)} is busy, and 8 calls wait"):
                call(MAX_WAITING).result(20)
            assert workers.submit(node.state.prepare, reference_to(free)).result(20).claim.name == "free"
            assert not any(future.done() for future in waiting)
        assert {future.result(20).claim.name for future in waiting} == {f"c{n}" for n in range(MAX_WAITING)}
    node.state.prepare(reference_to(shares[MAX_WAITING]))  # kubelet asks again


def test_a_busy_gpu_is_waited_for_no_longer_than_the_caller_allows_and_its_claim_goes_on_from_the_journal(
    tmp_path: Path,
) -> None:
    lock = ThreadLock()
    node = node_with(tmp_path, ServerFiles(tmp_path, FileSteps()), lock)
    with ThreadPoolExecutor(1) as workers:
        with lock.hold():
            waiting = workers.submit(node.state.prepare, REFERENCE, within_s=0.05)
            with pytest.raises(TemporaryError, match=f"{device_name(0)} is busy"):
                waiting.result(20)
    found = node.node_claims.of(REFERENCE.uid)
    assert isinstance(found, Checkpoint)
    assert (found.state, found.in_use) == (State.STARTED, False)
    node.state.prepare(REFERENCE)
    assert is_done(node)
