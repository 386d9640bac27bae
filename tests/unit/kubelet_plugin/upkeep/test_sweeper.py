from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.claims.last_guard import DeviceHeldError
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.kubelet_plugin.upkeep.sweeper import ORPHAN_GRACE_S, SWEEP_EVERY_S, UNHEARD
from support.kube import wait_for
from support.plugin import FakeClaims, FakePods, PluginNode, claim_of, make_claim, make_pod, reference_to

CLAIM = make_claim(devices=(0, 1), reserved_for={"pod": "pod-uid"})
NEXT = make_claim("next", (0,))
CHECKPOINT = "claims/claim-uid.json"
SPEC = "cdi/gpu.dracaena.dev-claim_claim-uid.json"


def prepared_node(folder: Path, *pods: Pod, claim: ResourceClaim = CLAIM) -> PluginNode:
    node = PluginNode(folder, FakeClaims(claim, NEXT), FakePods(*pods))
    node.state.prepare(reference_to(claim))
    return node


def swept(node: PluginNode, kind: str) -> float:
    return float(node.metrics.sweeping.swept.labels(kind)._value.get())


def sweep_after_grace(node: PluginNode) -> None:
    node.sweeper.sweep()
    node.clock.advance(ORPHAN_GRACE_S)
    node.sweeper.sweep()


def remade() -> ResourceClaim:
    return make_claim("claim", (0,), uid="later-uid")


@pytest.mark.parametrize("error", [TemporaryError("the folder cannot be listed"), KeyError("a bug")])
def test_a_part_of_a_sweep_that_fails_keeps_no_other_from_its_work(tmp_path: Path, error: Exception) -> None:
    def fails(*_: object) -> int:
        raise error

    node = PluginNode(tmp_path, unclaimed={"gpu": fails, "share": lambda: 3})
    with pytest.raises(TemporaryError, match=r"^gpu: .*(cannot be listed|a bug)"):
        node.sweeper.sweep()
    assert swept(node, "share") == 3
    node.recovery.recover = fails  # type: ignore[method-assign,assignment]
    with pytest.raises(TemporaryError, match=r"^claim: .*; gpu: "):
        node.sweeper.sweep()
    assert swept(node, "share") == 6


@pytest.mark.parametrize("now", [None, remade(), claim_of("claim", None)], ids=["deleted", "remade", "deallocated"])
def test_a_prepared_claim_that_is_gone_is_taken_back_after_a_while(tmp_path: Path, now: ResourceClaim | None) -> None:
    node = prepared_node(tmp_path)
    node.claims.by_key.pop(CLAIM.key)
    if now is not None:
        node.claims.put(now)
    node.sweeper.sweep()
    node.clock.advance(ORPHAN_GRACE_S - 1)
    node.sweeper.sweep()
    assert CHECKPOINT in node.files()
    node.clock.advance(1)
    node.sweeper.sweep()
    node.reporter.reconcile()
    assert node.files() == {"pod-resources/podlist.json": b"[]\n"}
    assert swept(node, "claim") == 1
    node.state.prepare(reference_to(NEXT))  # its device is free again


def test_what_no_claim_has_any_more_is_given_back_and_counted(tmp_path: Path) -> None:
    node = PluginNode(tmp_path, unclaimed={"gpu": iter((2, 0, 1)).__next__})
    for _ in range(3):
        node.sweeper.sweep()
    assert swept(node, "gpu") == 3


@pytest.mark.parametrize("silent_at", [0, 1, 2])
def test_nothing_comes_free_while_kubelet_does_not_answer(tmp_path: Path, silent_at: int) -> None:
    """kubelet is down, the pod was deleted by force: its containers run on."""
    node = prepared_node(tmp_path)
    node.claims.by_key.pop(CLAIM.key)
    for look in range(3):
        node.kubelet.silent = "kubelet has no socket" if look == silent_at else None
        node.sweeper.sweep()
        node.clock.advance(ORPHAN_GRACE_S / 2)
    assert CHECKPOINT in node.files()
    with pytest.raises(DeviceHeldError):
        node.state.prepare(reference_to(NEXT))
    node.kubelet.silent = None
    sweep_after_grace(node)
    assert CHECKPOINT not in node.files()


def test_a_kubelet_that_was_started_anew_gets_its_time_again(tmp_path: Path) -> None:
    """Right after a start it may know no pod yet, and it unprepares by itself what it kept."""
    node = prepared_node(tmp_path)
    node.claims.by_key.pop(CLAIM.key)
    for _ in range(3):
        node.sweeper.sweep()
        node.clock.advance(ORPHAN_GRACE_S - 1)
        node.kubelet.run += 1
    node.sweeper.sweep()
    assert CHECKPOINT in node.files()
    node.clock.advance(ORPHAN_GRACE_S)
    node.sweeper.sweep()
    assert CHECKPOINT not in node.files()


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_claim_that_is_given_anew_while_another_is_taken_back_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    """To take one back may last half a minute."""
    again = make_claim("other", (2,), uid="other-uid", reserved_for={"new": "new-uid"})
    node = prepared_node(tmp_path)
    node.claims.put(again)
    node.state.prepare(reference_to(again))
    if is_broken:
        (tmp_path / "claims" / "other-uid.json").write_bytes(b"rubbish")
    for claim in (CLAIM, again):
        node.claims.by_key.pop(claim.key)
    unprepare = node.state.unprepare

    def take_time(reference: ClaimReference) -> None:
        unprepare(reference)
        node.claims.put(again)
        node.pods.add(make_pod("new", claims={"claim": "other"}))

    monkeypatch.setattr(node.state, "unprepare", take_time)
    sweep_after_grace(node)
    assert CHECKPOINT not in node.files()
    assert "claims/other-uid.json" in node.files()


def test_what_kubelet_knows_is_never_taken_back(tmp_path: Path) -> None:
    node = prepared_node(tmp_path)
    node.claims.by_key.pop(CLAIM.key)
    node.kubelet.claims = {ClaimUid("claim-uid")}
    sweep_after_grace(node)
    assert CHECKPOINT in node.files()
    node.kubelet.claims = set()
    sweep_after_grace(node)
    assert CHECKPOINT not in node.files()


def test_devices_that_are_held_because_of_kubelet_are_told_of_once_after_a_while(tmp_path: Path) -> None:
    node = prepared_node(tmp_path)
    node.claims.by_key.pop(CLAIM.key)
    node.kubelet.silent = "kubelet has no socket /k/kubelet.sock"
    node.sweeper.sweep()
    assert node.metrics.sweeping.orphaned_claims._value.get() == 1
    assert node.told == []
    for _ in range(3):
        node.clock.advance(ORPHAN_GRACE_S)
        node.sweeper.sweep()
    ((reason, text),) = node.told
    assert reason == UNHEARD
    assert text.startswith("1 claims that are gone from the API still hold GPUs of this node")
    assert "kubelet has no socket /k/kubelet.sock. Start kubelet" in text
    node.kubelet.silent = None
    sweep_after_grace(node)
    node.sweeper.sweep()
    assert node.metrics.sweeping.orphaned_claims._value.get() == 0


def test_a_claim_that_is_there_stays_and_costs_no_read_while_its_pod_is_there(tmp_path: Path) -> None:
    node = prepared_node(tmp_path, make_pod())
    reads = node.claims.reads
    sweep_after_grace(node)
    assert node.claims.reads == reads
    node.pods.delete(make_pod())
    sweep_after_grace(node)
    assert CHECKPOINT in node.files()
    assert swept(node, "claim") == 0


def test_a_claim_that_is_gone_stays_while_its_pod_may_run(tmp_path: Path) -> None:
    node = prepared_node(tmp_path, make_pod())
    node.claims.by_key.pop(CLAIM.key)
    sweep_after_grace(node)
    assert CHECKPOINT in node.files()


def test_a_claim_that_is_gone_stays_while_a_pod_that_came_later_may_run(tmp_path: Path) -> None:
    later = make_pod("later")
    node = prepared_node(tmp_path, later, claim=make_claim(devices=(0, 1), reserved_for={"later": "later-uid"}))
    node.reporter.reconcile()  # the claim is there still, so the pod is known to use it
    node.claims.by_key.pop(CLAIM.key)
    sweep_after_grace(node)
    assert CHECKPOINT in node.files()
    node.pods.delete(later)
    sweep_after_grace(node)
    assert CHECKPOINT not in node.files()


def test_a_pod_of_another_claim_that_took_the_name_does_not_keep_the_old_one(tmp_path: Path) -> None:
    node = prepared_node(tmp_path, make_pod("later"))
    node.claims.put(remade())
    node.reporter.reconcile()
    sweep_after_grace(node)
    assert CHECKPOINT not in node.files()


def test_a_claim_that_comes_back_starts_its_time_anew(tmp_path: Path) -> None:
    node = prepared_node(tmp_path)
    gone = node.claims.by_key.pop(CLAIM.key)
    node.sweeper.sweep()
    node.claims.put(gone)
    node.clock.advance(ORPHAN_GRACE_S)
    node.sweeper.sweep()
    node.claims.by_key.pop(CLAIM.key)
    node.sweeper.sweep()
    assert CHECKPOINT in node.files()


def test_an_api_that_does_not_answer_settles_nothing(tmp_path: Path) -> None:
    node = prepared_node(tmp_path, make_pod("later", claims={"claim": "claim"}))
    node.specs.write("gpu.dracaena.dev-claim_stray-uid.json", b"{}")
    before = node.files()
    node.claims.unavailable = True
    sweep_after_grace(node)
    assert node.files() == before


def test_a_checkpoint_of_an_earlier_boot_goes_with_its_claim(tmp_path: Path) -> None:
    prepared_node(tmp_path)
    node = PluginNode(tmp_path, FakeClaims(CLAIM), boot_id="boot-2")
    node.sweeper.sweep()
    assert CHECKPOINT in node.files()
    node.claims.by_key.clear()
    node.sweeper.sweep()
    assert CHECKPOINT not in node.files()


def test_a_cdi_spec_without_a_claim_is_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    node = prepared_node(tmp_path, make_pod())
    others = ["nvidia.com-gpu.json", "gpu.dracaena.dev-other_x.json", "gpu.dracaena.dev-claim_.json"]
    for name in ("gpu.dracaena.dev-claim_stray-uid.json", *others):
        node.specs.write(name, b"{}")
    node.sweeper.sweep()
    assert set(node.specs.names(".json")) == {SPEC.removeprefix("cdi/"), *others}
    assert swept(node, "spec") == 1


def test_a_running_pods_lost_checkpoint_is_written_again(tmp_path: Path) -> None:
    node = prepared_node(tmp_path, make_pod())
    before = node.files()
    (tmp_path / CHECKPOINT).unlink()
    node.sweeper.sweep()
    assert node.files() == before
    assert (swept(node, "checkpoint"), swept(node, "spec")) == (1, 0)


def test_a_lost_checkpoint_that_meets_a_bug_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = make_claim("later", (2,), reserved_for={"pod": "pod-uid"})
    node = prepared_node(tmp_path, make_pod(claims={"claim": "claim", "later": "later"}))
    node.claims.put(later)
    node.state.prepare(reference_to(later))
    for name in (CHECKPOINT, "claims/later-uid.json"):
        (tmp_path / name).unlink()
    prepare = node.state.prepare

    def with_a_bug(reference: ClaimReference, **how: bool) -> None:
        if reference.name == "claim":
            raise AssertionError
        prepare(reference, **how)

    monkeypatch.setattr(node.state, "prepare", with_a_bug)
    node.sweeper.sweep()
    assert "claims/later-uid.json" in node.files()
    assert SPEC in node.files()


@pytest.mark.parametrize("checkpoint", [None, b"rubbish"], ids=["lost", "broken"])
def test_a_spec_that_cannot_be_read_keeps_devices_from_new_claims_and_no_answer_from_others(
    tmp_path: Path, checkpoint: bytes | None
) -> None:
    node = prepared_node(tmp_path, make_pod())
    spec = tmp_path / "cdi" / "gpu.dracaena.dev-claim_stray-uid.json"
    spec.symlink_to("/dev/null")
    if checkpoint is not None:
        (tmp_path / "claims" / "stray-uid.json").write_bytes(checkpoint)
    assert node.state.prepare(reference_to(CLAIM)).devices
    node.claims.put(later := make_claim("later", (2,)))
    with pytest.raises(TemporaryError, match="no CDI spec tells which devices"):
        node.state.prepare(reference_to(later))
    sweep_after_grace(node)
    assert not spec.is_symlink()
    node.state.prepare(reference_to(later))


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"{"), Path.unlink], ids=["broken", "lost"])
def test_a_node_that_lost_all_checkpoints_reads_each_claim_a_few_times(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    """Not each claim for each other one: with 200 shares these would be 40,000 requests."""
    claims = [make_claim(f"claim-{gpu}", (gpu,)) for gpu in range(8)]
    pods = [make_pod(f"pod-{gpu}", claims={"gpus": f"claim-{gpu}"}) for gpu in range(8)]
    node = PluginNode(tmp_path, FakeClaims(*claims), FakePods(*pods))
    for claim in claims:
        node.state.prepare(reference_to(claim))
    for claim in claims:
        damage(tmp_path / "claims" / f"{claim.metadata.uid}.json")
    node.claims.reads = 0
    node.sweeper.sweep()
    assert len(node.node_claims.prepared()) == len(claims)
    assert node.claims.reads <= 3 * len(claims)


def test_a_broken_checkpoint_of_no_pods_claim_is_set_aside_after_a_while(tmp_path: Path) -> None:
    node = prepared_node(tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(b"rubbish")
    node.sweeper.sweep()
    assert CHECKPOINT in node.files()
    node.clock.advance(ORPHAN_GRACE_S)
    node.sweeper.sweep()
    files = node.files()
    assert files[f"{CHECKPOINT}.broken"] == b"rubbish"
    assert SPEC not in files
    assert CHECKPOINT not in files


def test_a_lost_checkpoint_of_no_pods_claim_holds_its_devices_for_a_while(tmp_path: Path) -> None:
    """A pod that was deleted by force is gone from the API first: its containers may run until kubelet ends them."""
    node = prepared_node(tmp_path)
    (tmp_path / CHECKPOINT).unlink()
    node.claims.by_key.pop(CLAIM.key)
    node.sweeper.sweep()
    node.kubelet.claims.add(ClaimUid("claim-uid"))
    node.clock.advance(ORPHAN_GRACE_S)
    node.sweeper.sweep()
    with pytest.raises(DeviceHeldError):
        node.state.prepare(reference_to(NEXT))
    node.kubelet.claims.clear()
    sweep_after_grace(node)
    assert SPEC not in node.files()
    assert swept(node, "claim") == 1
    node.state.prepare(reference_to(NEXT))


def test_a_claim_whose_checkpoint_was_lost_is_not_taken_back_once_it_is_prepared_again(tmp_path: Path) -> None:
    node = prepared_node(tmp_path)
    (tmp_path / CHECKPOINT).unlink()
    node.sweeper.sweep()
    node.clock.advance(ORPHAN_GRACE_S)
    node.pods.add(make_pod())
    node.state.prepare(reference_to(CLAIM))
    before = node.files()
    node.sweeper.sweep()
    assert node.files() == before


def test_half_a_preparation_of_a_claim_that_is_gone_is_taken_back_at_once(tmp_path: Path) -> None:
    node = prepared_node(tmp_path)
    prepared = node.node_claims.prepared()[0]
    node.node_claims.discard(prepared.claim.uid)
    node.node_claims.start(prepared)
    assert json.loads(node.files()[CHECKPOINT])["checkpoint"]["state"] == "started"
    node.claims.by_key.clear()
    node.sweeper.sweep()
    assert CHECKPOINT not in node.files()


def test_a_spec_whose_claim_is_unprepared_while_it_is_read_gets_no_checkpoint_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = prepared_node(tmp_path, make_pod())
    (tmp_path / CHECKPOINT).unlink()
    read, state = node.claims.read_claim, node.state
    reads: list[ClaimReference] = []

    def unprepared_meanwhile(reference: ClaimReference) -> ResourceClaim:
        claim = read(reference)
        reads.append(reference)
        state.unprepare(reference)
        return claim

    monkeypatch.setattr(node.claims, "read_claim", unprepared_meanwhile)
    node.sweeper.sweep()
    assert len(reads) == 1
    assert not set(node.files()) & {CHECKPOINT, SPEC}
    assert swept(node, "checkpoint") == 0


def test_an_orphan_that_cannot_be_removed_is_tried_again(tmp_path: Path) -> None:
    node = prepared_node(tmp_path)
    node.claims.by_key.clear()
    (tmp_path / SPEC).unlink()
    (tmp_path / SPEC).mkdir()  # a folder cannot be removed as a file
    node.sweeper._take_back(reference_to(CLAIM), "test")
    assert CHECKPOINT in node.files()
    assert swept(node, "claim") == 0
    (tmp_path / SPEC).rmdir()
    sweep_after_grace(node)
    assert CHECKPOINT not in node.files()


def test_the_thread_sweeps_once_the_pods_are_known_and_then_regularly(tmp_path: Path) -> None:
    node = prepared_node(tmp_path)
    node.pods.synced = False
    stray = tmp_path / "cdi" / "gpu.dracaena.dev-claim_stray-uid.json"
    stray.write_bytes(b"{}")

    def swept_after(seconds: float) -> bool:
        node.clock.advance(seconds)
        return not stray.exists()

    node.sweeper.start()
    try:
        for _ in range(3):
            node.clock.advance(1.0)
        assert stray.exists()
        node.pods.synced = True
        wait_for(lambda: swept_after(1.0), "the first sweep")
        stray.write_bytes(b"{}")
        wait_for(lambda: swept_after(SWEEP_EVERY_S / 10), "the next sweep")
    finally:
        node.sweeper.stop()
