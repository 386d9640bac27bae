"""Each fault of an MPS server is told once, on the claim and the pods that it concerns, whoever looks and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from dracaena.api import mps
from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.mps import MpsClient, MpsFault, MpsFaultKind, MpsNodeStatus, MpsPhase, MpsShareStatus
from dracaena.api.objects import Pod
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.kubelet_plugin.changes.kinds.mps_shares import MpsShares
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, Effect, part_on_gpu
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.kubelet_plugin.upkeep.mps_fault_watch import LOOK_EVERY_S, TOLD, MpsFaultWatch
from support.killed_steps import KilledSteps, StopError
from support.kube import wait_for
from support.plugin import FakePods, PluginNode, device_name, gpu_uuid, make_claim, make_pod, prepared_claim

GPU = gpu_uuid(0)
SERVER_FAULT, DAEMON_DIED = MpsFaultKind.SERVER_FAULT, MpsFaultKind.DAEMON_DIED


def effect_of(claim: str) -> Effect:
    thing = part_on_gpu(device_name(0), mps.share_name(GPU, f"{claim}-uid", claim))
    return Effect(MPS_SHARE, device_name(0), device_name(0), claim, {"gpu": GPU}, thing=thing)


class Watched:
    """A node with two prepared shares, the files of a supervisor, and what was told. `start()` is a restart."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "mps"
        (self.root / mps.STATUS).mkdir(parents=True)
        self.told: list[tuple[str, list[str], str, str]] = []
        self.users_known = True
        self.node = PluginNode(folder / "plugin", pods=FakePods(make_pod("pod"), make_pod("other")))
        for name in ("one", "two"):
            self.prepare(name)
        self.say_protocol(3)
        self.watch = self.start()

    def prepare(self, name: str) -> None:
        claim = replace(prepared_claim(name, share_id=name), wants=(effect_of(name),))
        with self.node.node_claims.hold():
            self.node.node_claims.finish(self.node.node_claims.start(claim))

    def reserve(self, name: str, *pods: str) -> None:
        """Let the API have the claim reserved for these pods."""
        self.node.claims.put(make_claim(name, uid=f"{name}-uid", reserved_for={pod: f"{pod}-uid" for pod in pods}))

    def unprepare(self, name: str) -> None:
        with self.node.node_claims.hold():
            self.node.node_claims.remove(prepared_claim(name).claim.uid)

    def start(self, steps: FileSteps | None = None, boot: str = "boot-1") -> MpsFaultWatch:
        shares = MpsShares(
            root=str(self.root),
            requests=DocumentFolder(self.root / mps.REQUESTS),
            statuses=DocumentFolder(self.root / mps.STATUS),
            node=DocumentFolder(self.root),
            is_running=lambda: True,
            boot_id=boot,
            clock=self.node.clock,
        )
        return MpsFaultWatch(
            shares=shares,
            claims=self.node.node_claims,
            users_known=lambda: self.users_known,
            pods_of=self.node.reporter.users_now,
            files=DocumentFolder(self.node.folder, steps=steps),
            tell=self.tell,
            clock=self.node.clock,
        )

    def tell(self, claim: ClaimReference, pods: Sequence[Pod], reason: str, text: str) -> None:
        self.told.append((claim.name, [pod.metadata.name for pod in pods], reason, text))

    def news(self) -> list[tuple[str, list[str], str]]:
        """Look, and return what was told since the last time."""
        self.watch.look()
        found = [(claim, pods, reason) for claim, pods, reason, _ in self.told]
        self.told.clear()
        return found

    def say_protocol(self, protocol: int) -> None:
        said = MpsNodeStatus(boot_id="boot-1", protocol=protocol, message="", multi_user=True)
        (self.root / mps.NODE_STATUS).write_bytes(mps.encode(said))

    def status(self, claim: str) -> Path:
        return self.root / mps.STATUS / (mps.share_name(GPU, f"{claim}-uid", claim) + mps.SUFFIX)

    def say(self, claim: str, sequence: int = 0, kind: MpsFaultKind = SERVER_FAULT, *pods: str, at: str = "") -> None:
        fault = MpsFault(
            sequence=sequence,
            kind=kind,
            message="a client made a fatal fault",
            since=at or f"2026-11-26T12:00:0{sequence}Z",
            clients=tuple(MpsClient(pid=500, pod_uid=uid) for uid in pods),
        )
        said = MpsShareStatus(request="x", phase=MpsPhase.FAILED, gpu=GPU, fault=fault if sequence else None)
        self.status(claim).write_bytes(mps.encode(said))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_share_without_a_fault_is_not_spoken_of(watched: Watched) -> None:
    watched.say("one")
    assert watched.news() == []
    assert not (watched.node.folder / TOLD).exists()


def test_each_fault_is_told_once_with_its_words(watched: Watched) -> None:
    watched.say("one", 1)
    watched.watch.look()
    ((claim, pods, reason, text),) = watched.told
    assert (claim, pods, reason) == ("one", ["pod"], "MpsServerFault")
    assert text.startswith(f"MPS on {GPU}, seen 2026-11-26T12:00:01Z: a client made a fatal fault.")
    watched.told.clear()
    assert [watched.news() for _ in range(3)] == [[], [], []]
    watched.say("one", 2, DAEMON_DIED)
    assert watched.news() == [("one", ["pod"], "MpsDaemonDied")]
    assert watched.news() == []


def test_a_restart_and_another_instance_tell_nothing_again_and_what_is_new(watched: Watched) -> None:
    watched.say("one", 1)
    before = watched.watch
    assert len(watched.news()) == 1
    watched.watch = watched.start()
    assert watched.news() == []
    watched.say("one", 2)
    watched.say("two", 1)
    assert [claim for claim, _, _ in watched.news()] == ["one", "two"]
    watched.watch = before  # of the release before, during an upgrade
    assert watched.news() == []
    watched.watch = watched.start()
    assert watched.news() == []


def test_with_protocol_3_only_the_pods_of_its_clients_are_told(watched: Watched) -> None:
    watched.say("one", 1, SERVER_FAULT, "elsewhere-uid")
    assert watched.news() == [("one", [], "MpsServerFault")]
    watched.say("one", 2, SERVER_FAULT, "pod-uid")
    assert watched.news() == [("one", ["pod"], "MpsServerFault")]
    watched.say_protocol(2)
    watched.say("one", 3, SERVER_FAULT, "elsewhere-uid")
    assert watched.news() == [("one", ["pod"], "MpsServerFault")]


def test_a_claim_that_was_prepared_again_begins_anew(watched: Watched) -> None:
    watched.say("one", 1)
    assert len(watched.news()) == 1
    watched.say("one", 1, at="2026-11-26T13:00:00Z")
    assert watched.news() == [("one", ["pod"], "MpsServerFault")]


def test_what_was_told_goes_with_the_last_share(watched: Watched) -> None:
    watched.say("one", 1)
    watched.say("two", 1)
    assert len(watched.news()) == 2
    watched.unprepare("one")
    assert watched.news() == []
    assert (watched.node.folder / TOLD).read_bytes().count(b"sequence") == 1
    watched.unprepare("two")
    assert watched.news() == []
    assert not (watched.node.folder / TOLD).exists()


def test_a_status_that_cannot_be_read_holds_up_nobody_and_is_told_once_it_can(watched: Watched) -> None:
    watched.say("one", 1)
    assert len(watched.news()) == 1
    watched.status("one").write_bytes(b"{")
    watched.say("two", 1)
    with pytest.raises(DracaenaError, match="does not decode"):
        watched.watch.look()
    assert [claim for claim, _, _, _ in watched.told] == ["two"]
    watched.told.clear()
    watched.say("one", 1)
    assert watched.news() == []


def test_nobody_is_told_before_the_pods_are_known(watched: Watched) -> None:
    watched.say("one", 1)
    watched.users_known = False
    assert watched.news() == []
    watched.users_known = True
    assert len(watched.news()) == 1


@pytest.mark.parametrize(("protocol", "told"), [(2, ["pod", "late"]), (3, ["late"])])
def test_a_pod_that_the_watch_has_not_shown_yet_is_told(watched: Watched, protocol: int, told: list[str]) -> None:
    """It may have come to a claim that was prepared before, and its Event would never be written later."""
    watched.say_protocol(protocol)
    watched.reserve("one", "pod", "late")
    watched.node.pods.add(make_pod("late"), shown=False)
    watched.say("one", 1, SERVER_FAULT, "late-uid")
    assert watched.news() == [("one", told, "MpsServerFault")]


def test_pods_of_other_nodes_that_are_gone_or_have_another_uid_are_not_told(watched: Watched) -> None:
    watched.reserve("one", "pod", "elsewhere", "gone", "successor")
    watched.node.pods.add(make_pod("elsewhere", node="node-b"), shown=False)
    successor = make_pod("successor")
    metadata = msgspec.structs.replace(successor.metadata, uid="another-uid")
    watched.node.pods.add(msgspec.structs.replace(successor, metadata=metadata), shown=False)
    watched.say("one", 1)
    assert watched.news() == [("one", ["pod"], "MpsServerFault")]


def test_a_fault_whose_pods_the_api_does_not_tell_is_told_later_and_holds_up_no_other(watched: Watched) -> None:
    watched.reserve("one", "late")
    watched.node.pods.add(make_pod("late"), shown=False)
    watched.say("one", 1)
    watched.say("two", 1)
    watched.node.pods.failures = 1
    with pytest.raises(TemporaryError):
        watched.watch.look()
    assert [claim for claim, _, _, _ in watched.told] == ["two"]
    watched.told.clear()
    assert watched.news() == [("one", ["pod", "late"], "MpsServerFault")]
    reads = watched.node.claims.reads
    assert watched.news() == []
    assert watched.node.claims.reads == reads, "what was told costs no request"


def test_a_file_that_cannot_be_written_does_not_make_it_told_again_and_again(watched: Watched) -> None:
    (watched.node.folder / TOLD).mkdir()
    watched.say("one", 1)
    for _ in range(3):
        with pytest.raises(DracaenaError, match=TOLD):
            watched.watch.look()
    assert [claim for claim, _, _, _ in watched.told] == ["one"]
    (watched.node.folder / TOLD).rmdir()
    watched.watch.look()
    watched.watch = watched.start()
    watched.watch.look()
    assert [claim for claim, _, _, _ in watched.told] == ["one"]


def test_a_file_that_was_torn_costs_one_repetition(watched: Watched) -> None:
    watched.say("one", 1)
    assert len(watched.news()) == 1
    (watched.node.folder / TOLD).write_bytes(b'{"s_')
    watched.watch = watched.start()
    assert [len(watched.news()) for _ in range(2)] == [1, 0]


def test_kill_9_at_each_step_loses_nothing(watched: Watched) -> None:
    """What is told may be told twice, never not at all, and no half-written file is taken for one."""
    watched.say("one", 1)
    for last in range(1, 100):
        (watched.node.folder / TOLD).unlink(missing_ok=True)
        watched.told.clear()
        steps = KilledSteps(last)
        try:
            watched.start(steps).look()
        except StopError:
            watched.start().look()
            assert 1 <= len(watched.told) <= 2
            watched.start().look()
            assert 1 <= len(watched.told) <= 2
            continue
        break
    else:
        pytest.fail("it never came to its end")
    assert last > 1


def test_the_thread_looks_at_its_start_and_every_five_seconds(watched: Watched) -> None:
    watched.say("one", 1)
    watched.watch.start()
    try:
        wait_for(lambda: len(watched.told) == 1, "the first fault is told")
        watched.say("one", 2)

        def told_after_a_while() -> bool:
            watched.node.clock.advance(LOOK_EVERY_S)
            return len(watched.told) == 2

        wait_for(told_after_a_while, "the second one is told")
    finally:
        watched.watch.stop()
