from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.objects import Pod
from dracaena.api.podlist import HEARTBEAT_S, PodlistEntry, decode_podlist
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kube.reflector import FIRST_BACKOFF_S
from dracaena.kubelet_plugin.pods.devices_reporter import ASK_AGAIN_S, GATHER_S, RECONCILE_EVERY_S
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from support.kube import wait_for
from support.late_watch import seen_to_rest
from support.nvml_world import RECORDED
from support.plugin import FakeClaims, FakePods, PluginNode, gpu_uuid, make_claim, make_pod, reference_to
from support.podlists import encode_podlist

CLAIM = make_claim(devices=(0,), reserved_for={"pod": "pod-uid"})
SHARED = make_claim(devices=(0,), reserved_for={name: f"{name}-uid" for name in ("pod", "second", "third")})
"""The same claim once it is reserved for more pods."""


def node_in(folder: Path, pods: FakePods | None = None) -> PluginNode:
    return PluginNode(folder, FakeClaims(CLAIM), pods or FakePods(make_pod()))


def listed(folder: Path) -> list[str]:
    data = (folder / "pod-resources" / "podlist.json").read_bytes()
    return [f"{entry.name}/{entry.container}" for entry in decode_podlist(data)]


def test_second_pod_on_a_prepared_claim_is_listed_and_annotated(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.claims.put(SHARED)
    node.pods.add(make_pod("second"))
    node.reporter.reconcile()
    assert listed(tmp_path) == ["pod/main", "second/main"]
    assert node.pods.annotations("second")["gpu.dracaena.dev/uuids"] == gpu_uuid(0)


def test_a_pod_for_which_the_claim_is_not_reserved_is_neither_listed_nor_annotated(tmp_path: Path) -> None:
    node = node_in(tmp_path, FakePods(make_pod(), make_pod("intruder", phase="Pending")))
    node.state.prepare(reference_to(CLAIM))
    node.reporter.reconcile()
    assert listed(tmp_path) == ["pod/main"]
    assert node.pods.annotations("intruder") == {}


def test_pods_that_name_a_claim_of_others_cost_one_read_a_claim_and_minute(tmp_path: Path) -> None:
    node = node_in(tmp_path, FakePods(make_pod(), *(make_pod(f"intruder-{n}") for n in range(5))))
    node.state.prepare(reference_to(CLAIM))
    before = node.claims.reads
    for _ in range(3):
        node.reporter.reconcile()
    assert node.claims.reads == before + 1
    node.clock.advance(ASK_AGAIN_S)
    node.reporter.reconcile()
    assert node.claims.reads == before + 2


def test_a_pod_that_came_before_its_reservation_is_listed_within_a_minute_of_it(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.pods.add(make_pod("second"))
    node.reporter.reconcile()
    node.claims.put(SHARED)
    node.clock.advance(ASK_AGAIN_S)
    node.reporter.reconcile()
    assert listed(tmp_path) == ["pod/main", "second/main"]


def test_a_pod_whose_claim_only_has_the_name_of_a_prepared_one_is_neither_listed_nor_annotated(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.claims.put(make_claim(devices=(1,), uid="new-uid"))
    node.pods.add(make_pod("new"))
    node.reporter.reconcile()
    assert listed(tmp_path) == ["pod/main"]
    assert node.pods.annotations("new") == {}


def test_a_claim_that_is_gone_from_the_api_keeps_its_consumers_and_gets_no_others(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.claims.by_key.clear()
    node.pods.add(make_pod("new"))
    node.reporter.reconcile()
    assert listed(tmp_path) == ["pod/main"]


def test_the_claim_is_read_once_for_all_later_pods_and_not_again(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.reporter.reconcile()
    before = node.claims.reads
    node.claims.put(SHARED)
    node.pods.add(make_pod("second"))
    node.pods.add(make_pod("third"))
    for _ in range(3):
        node.reporter.reconcile()
    assert node.claims.reads == before + 1
    assert listed(tmp_path) == ["pod/main", "second/main", "third/main"]


def test_a_later_pod_is_listed_once_the_api_answers_and_the_others_at_once(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.claims.put(SHARED)
    node.pods.add(make_pod("second"))
    node.claims.unavailable = True
    with pytest.raises(TemporaryError, match="no answer"):
        node.reporter.reconcile()
    assert listed(tmp_path) == ["pod/main"]
    node.claims.unavailable = False
    node.reporter.reconcile()
    assert listed(tmp_path) == ["pod/main", "second/main"]


def test_a_later_pod_stays_listed_over_a_restart_without_an_api(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.claims.put(SHARED)
    node.pods.add(make_pod("second"))
    node.reporter.reconcile()
    restarted = node_in(tmp_path, node.pods)
    restarted.claims.unavailable = True
    restarted.reporter.reconcile()
    assert listed(tmp_path) == ["pod/main", "second/main"]


def test_after_a_restart_it_is_said_when_all_who_use_a_claim_are_known(tmp_path: Path) -> None:
    """The second pod is no consumer of the checkpoint: the watch alone has shown it, before or after the restart."""
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.claims.put(SHARED)
    node.pods.add(make_pod("second"))
    restarted = node_in(tmp_path, node.pods)
    restarted.claims.put(SHARED)

    def known() -> tuple[bool, list[str]]:
        (prepared,) = restarted.node_claims.prepared()
        return restarted.reporter.users_known, [pod.metadata.name for pod in restarted.reporter.users_of(prepared)]

    assert known() == (False, ["pod"])
    restarted.claims.unavailable = True
    with pytest.raises(TemporaryError):
        restarted.reporter.reconcile()
    assert known() == (False, ["pod"])
    restarted.claims.unavailable = False
    restarted.reporter.reconcile()
    assert known() == (True, ["pod", "second"])


def test_prepare_of_another_claim_keeps_a_later_pod_and_asks_nothing_about_it(tmp_path: Path) -> None:
    other = make_claim("other", devices=(1,))
    node = node_in(tmp_path)
    node.claims.put(other)
    node.state.prepare(reference_to(CLAIM))
    node.claims.put(SHARED)
    node.pods.add(make_pod("second"))
    node.reporter.reconcile()
    before = node.claims.reads
    node.state.prepare(reference_to(other))
    assert node.claims.reads == before + 1  # its own
    assert listed(tmp_path) == ["pod/main", "second/main"]


def test_a_deleted_pod_leaves_the_list(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.pods.delete(make_pod())
    node.reporter.reconcile()
    assert listed(tmp_path) == []


def test_annotations_are_removed_when_the_claim_goes_and_others_stay(tmp_path: Path) -> None:
    node = node_in(tmp_path, FakePods(make_pod(annotations={"mine": "x"})))
    node.state.prepare(reference_to(CLAIM))
    node.reporter.reconcile()
    assert set(node.pods.annotations("pod")) == {"mine", "gpu.dracaena.dev/devices", "gpu.dracaena.dev/uuids"}
    node.state.unprepare(reference_to(CLAIM))
    node.reporter.reconcile()
    assert node.pods.annotations("pod") == {"mine": "x"}


def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.reporter.reconcile()
    path = tmp_path / "pod-resources" / "podlist.json"
    before = (path.stat().st_ino, len(node.pods.patches))
    node.reporter.reconcile()
    assert (path.stat().st_ino, len(node.pods.patches)) == before


def test_a_pod_that_cannot_be_annotated_does_not_hinder_the_others(tmp_path: Path) -> None:
    node = node_in(tmp_path, FakePods(make_pod("a"), make_pod("b")))
    node.claims.put(make_claim(devices=(0,), reserved_for={"a": "a-uid", "b": "b-uid"}))
    node.state.prepare(reference_to(CLAIM))
    node.pods.failures = 1
    with pytest.raises(TemporaryError):
        node.reporter.reconcile()
    assert [key for key, _ in node.pods.patches] == ["default/b"]
    node.reporter.reconcile()
    assert [key for key, _ in node.pods.patches] == ["default/b", "default/a"]


def test_after_a_restart_the_list_of_the_last_run_holds_until_all_pods_are_known(tmp_path: Path) -> None:
    folder = tmp_path / "pod-resources"
    folder.mkdir()
    old = PodlistEntry("old", "default", "main", ("GPU-1",), claims=("old-uid",))
    (folder / "podlist.json").write_bytes(encode_podlist([old]))
    node = node_in(tmp_path, FakePods(make_pod(), synced=False))
    node.state.prepare(reference_to(CLAIM))
    assert listed(tmp_path) == ["old/main", "pod/main"]
    node.pods.synced = True
    node.reporter.reconcile()
    assert listed(tmp_path) == ["pod/main"]


def test_a_claim_that_goes_before_all_pods_are_known_takes_its_entries_along(tmp_path: Path) -> None:
    node = node_in(tmp_path, FakePods(make_pod(), synced=False))
    node.state.prepare(reference_to(CLAIM))
    node.state.unprepare(reference_to(CLAIM))
    assert listed(tmp_path) == []


def test_a_broken_list_of_the_last_run_is_written_anew(tmp_path: Path) -> None:
    folder = tmp_path / "pod-resources"
    folder.mkdir()
    (folder / "podlist.json").write_bytes(b"[{")
    node = node_in(tmp_path, FakePods(make_pod(), synced=False))
    node.state.prepare(reference_to(CLAIM))
    assert listed(tmp_path) == ["pod/main"]


def in_time(node: PluginNode, look: Callable[[], object], step_s: float = 60.0) -> Callable[[], object]:
    """Look, with time passing at each look: the thread pauses between a change and its work."""

    def passing() -> object:
        node.clock.advance(step_s)
        return look()

    return passing


def test_the_thread_follows_pods_and_tries_again_after_failures(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.pods.failures = 1
    node.reporter.recover_first(node.recovery.recover)
    node.reporter.start()
    try:
        node.state.prepare(reference_to(CLAIM))

        def annotated() -> bool:
            return "gpu.dracaena.dev/uuids" in node.pods.annotations("pod")

        wait_for(in_time(node, annotated), "the pod is annotated although the first try failed")
        second = make_pod("second")
        node.claims.put(SHARED)
        node.pods.add(second)
        node.reporter.pod_changed(None, second)
        both = ["pod/main", "second/main"]
        wait_for(in_time(node, lambda: listed(tmp_path) == both), "the second pod is listed")
    finally:
        node.reporter.stop()


def test_a_new_reading_ends_the_pause_only_while_claims_are_to_be_recovered(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    known: list[bool] = []
    with seen_to_rest() as resting:
        node.reporter.recover_first(lambda _pods: bool(known))
        node.reporter.start()
        try:
            wait_for(in_time(node, lambda: resting, GATHER_S / 10), "it could not recover a claim")
            known.append(True)
            since_s = node.clock.monotonic()
            node.reporter.take(RECORDED)
            wait_for(in_time(node, lambda: node.reporter._recover is None, GATHER_S / 10), "it is recovered")
            assert node.clock.monotonic() - since_s < FIRST_BACKOFF_S / 2, "no pause after a failure has passed"
            node.reporter.take(RECORDED)
            assert not node.reporter._worker._hurried
        finally:
            node.reporter.stop()


def test_pods_without_claims_cause_no_work(tmp_path: Path) -> None:
    node = node_in(tmp_path, FakePods())
    node.reporter.recover_first(node.recovery.recover)
    node.reporter.start()
    try:
        wait_for(in_time(node, (tmp_path / "pod-resources" / "podlist.json").exists), "the first list is written")
        (tmp_path / "pod-resources" / "podlist.json").unlink()
        node.reporter.pod_changed(None, make_pod(claims={}, containers={}))
        with_claims = make_pod("b")
        assert not node.reporter._worker._noticed
        node.reporter.pod_changed(with_claims, None)
        wait_for(in_time(node, (tmp_path / "pod-resources" / "podlist.json").exists), "the list is written again")
    finally:
        node.reporter.stop()


def asks_for_work(node: PluginNode, old: Pod, new: Pod) -> bool:
    """Whether a change that the watch tells makes the thread look at all files again."""
    node.reporter._worker._noticed = False
    node.pods.add(new)
    node.reporter.pod_changed(old, new)
    return node.reporter._worker._noticed


def test_our_own_annotations_that_come_back_by_watch_cause_no_work(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    bare = node.pods.stored["default/pod"]
    node.state.prepare(reference_to(CLAIM))
    assert asks_for_work(node, bare, msgspec.structs.replace(bare))  # they are not written yet
    node.reporter.reconcile()
    ours = node.pods.stored["default/pod"]
    assert ours.metadata.annotations
    assert not asks_for_work(node, bare, ours)
    labelled = msgspec.structs.replace(
        ours.metadata, labels={"a": "b"}, annotations={**ours.metadata.annotations, "c": "d"}
    )
    assert not asks_for_work(node, ours, msgspec.structs.replace(ours, metadata=labelled))
    patches = len(node.pods.patches)
    node.reporter.reconcile()
    assert len(node.pods.patches) == patches


def test_whatever_else_changes_a_pod_with_claims_is_looked_at(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.reporter.reconcile()
    ours = node.pods.stored["default/pod"]
    for change in (
        msgspec.structs.replace(ours, status=msgspec.structs.replace(ours.status, phase="Failed")),
        msgspec.structs.replace(ours, metadata=msgspec.structs.replace(ours.metadata, uid="another")),
        msgspec.structs.replace(ours, metadata=msgspec.structs.replace(ours.metadata, annotations={})),
        msgspec.structs.replace(ours, metadata=msgspec.structs.replace(ours.metadata, deletion_timestamp="now")),
        msgspec.structs.replace(ours, spec=make_pod(claims={"other": "other"}).spec),
    ):
        assert asks_for_work(node, ours, change)
        assert asks_for_work(node, change, ours) or change.metadata.annotations == {}


def test_annotations_that_come_back_after_their_claim_went_are_removed(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    bare = node.pods.stored["default/pod"]
    node.state.prepare(reference_to(CLAIM))
    node.reporter.reconcile()
    late = node.pods.stored["default/pod"]
    node.pods.add(bare)  # the watch is behind: it has not shown our annotations yet
    node.state.unprepare(reference_to(CLAIM))
    node.reporter.reconcile()
    assert asks_for_work(node, bare, late)
    node.reporter.reconcile()
    assert node.pods.annotations("pod") == {}


def test_metrics_count_prepared_claims_and_devices(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    gauges = (node.metrics.claims.prepared, node.metrics.claims.devices)
    node.state.prepare(reference_to(CLAIM))
    node.reporter.reconcile()
    assert [gauge._value.get() for gauge in gauges] == [1, 1]
    node.state.unprepare(reference_to(CLAIM))
    node.reporter.reconcile()
    assert [gauge._value.get() for gauge in gauges] == [0, 0]


def test_a_list_that_somebody_removed_or_changed_is_right_again_without_any_news(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    file = tmp_path / "pod-resources" / "podlist.json"
    right = file.read_bytes()
    node.reporter.recover_first(node.recovery.recover)
    node.reporter.start()
    try:
        for spoil in (file.unlink, lambda: file.write_bytes(b"[]\n")):
            wait_for(lambda: not node.reporter._worker._noticed, "the thread waits")
            spoil()

            def mended() -> bool:
                node.clock.advance(RECONCILE_EVERY_S / 4)
                return file.exists() and file.read_bytes() == right

            wait_for(mended, "the list is right again")
    finally:
        node.reporter.stop()


def age_of_file(folder: Path) -> float:
    return time.time() - (folder / "pod-resources" / "podlist.json").stat().st_mtime


def make_old(folder: Path) -> None:
    os.utime(folder / "pod-resources" / "podlist.json", (1.0, 1.0))


def test_the_thread_gives_a_list_that_stays_right_a_new_time_within_each_minute(tmp_path: Path) -> None:
    assert RECONCILE_EVERY_S < HEARTBEAT_S
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    node.reporter.recover_first(node.recovery.recover)
    node.reporter.start()
    try:
        for _ in range(2):
            wait_for(lambda: not node.reporter._worker._noticed, "the thread waits")
            make_old(tmp_path)

            def beats() -> bool:
                node.clock.advance(RECONCILE_EVERY_S / 4)
                return age_of_file(tmp_path) < HEARTBEAT_S

            wait_for(beats, "the file has a new time")
    finally:
        node.reporter.stop()


def test_the_list_keeps_its_old_time_while_pods_are_not_known(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    make_old(tmp_path)
    restarted = node_in(tmp_path, FakePods(make_pod(), synced=False))
    restarted.state.prepare(reference_to(CLAIM))
    assert age_of_file(tmp_path) > HEARTBEAT_S


def test_a_heartbeat_that_fails_is_an_error_and_hinders_no_annotation(tmp_path: Path) -> None:
    node = node_in(tmp_path)
    node.state.prepare(reference_to(CLAIM))
    with (
        patch.object(DocumentFolder, "touch", side_effect=TemporaryError("disk is away")),
        pytest.raises(TemporaryError, match="disk is away"),
    ):
        node.reporter.reconcile()
    assert node.pods.annotations("pod")["gpu.dracaena.dev/uuids"] == gpu_uuid(0)


def test_the_age_of_the_list_grows_while_it_cannot_be_written(tmp_path: Path) -> None:
    def age() -> float | None:
        return node.registry.get_sample_value("dracaena_plugin_podlist_age_seconds")

    node = node_in(tmp_path)
    node.clock.advance(7)
    assert age() == 7
    node.reporter.reconcile()
    assert age() == 0
    (tmp_path / "pod-resources" / "podlist.json").unlink()
    (tmp_path / "pod-resources" / "podlist.json").mkdir()
    node.clock.advance(100)
    with pytest.raises(DracaenaError):
        node.reporter.reconcile()
    assert age() == 100


def test_a_node_without_claims_has_an_empty_list_once_its_pods_are_known(tmp_path: Path) -> None:
    node = node_in(tmp_path, FakePods())
    node.reporter.reconcile()
    assert (tmp_path / "pod-resources" / "podlist.json").read_bytes() == b"[]\n"


def test_after_a_reboot_nobody_is_listed_until_kubelet_prepares_anew(tmp_path: Path) -> None:
    node_in(tmp_path).state.prepare(reference_to(CLAIM))
    assert listed(tmp_path) == ["pod/main"]
    rebooted = PluginNode(tmp_path, FakeClaims(CLAIM), FakePods(make_pod()), boot_id="boot-2")
    rebooted.reporter.reconcile()
    assert listed(tmp_path) == []
    rebooted.state.prepare(reference_to(CLAIM))
    assert listed(tmp_path) == ["pod/main"]


def job_node(folder: Path) -> PluginNode:
    node = PluginNode(folder, FakeClaims(CLAIM), FakePods(make_pod()), job_mapping=True)
    node.state.prepare(reference_to(CLAIM))
    return node


def job_files_of(node: PluginNode) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((node.folder / "jobs").iterdir())}


def test_the_job_mapping_follows_and_a_free_gpu_keeps_an_empty_file(tmp_path: Path) -> None:
    node = job_node(tmp_path)
    node.reporter.reconcile()
    mine = [b"default/pod/main\n"] * len(CLAIM.status.allocation.devices.results)  # type: ignore[union-attr]
    assert list(job_files_of(node).values()) == mine
    (tmp_path / "jobs" / "notes").write_bytes(b"not ours")
    node.state.unprepare(reference_to(CLAIM))
    node.reporter.reconcile()
    files = job_files_of(node)
    assert files.pop("notes") == b"not ours"
    assert set(files.values()) == {b""}


def test_the_job_mapping_of_the_last_run_holds_until_the_pods_are_known(tmp_path: Path) -> None:
    job_node(tmp_path).reporter.reconcile()
    again = PluginNode(tmp_path, FakeClaims(CLAIM), FakePods(synced=False), job_mapping=True)
    before = job_files_of(again)
    again.reporter.reconcile()
    assert job_files_of(again) == before


def test_a_job_mapping_that_cannot_be_written_hinders_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(b"in the way")
    node = job_node(tmp_path)
    with pytest.raises(DracaenaError, match="/jobs"):
        node.reporter.reconcile()
    assert node.pods.annotations("pod")


def test_a_heartbeat_that_fails_does_not_keep_the_job_mapping_from_being_written(tmp_path: Path) -> None:
    node = job_node(tmp_path)
    with (
        patch.object(DocumentFolder, "touch", side_effect=TemporaryError("disk is away")),
        pytest.raises(TemporaryError, match="disk is away"),
    ):
        node.reporter.reconcile()
    assert b"default/pod/main\n" in job_files_of(node).values()


def test_the_list_names_gpus_in_the_form_that_was_set(tmp_path: Path) -> None:
    node = PluginNode(tmp_path, FakeClaims(CLAIM), FakePods(make_pod()), gpu_name_format=GpuNameFormat.DEVICE_NAME)
    node.state.prepare(reference_to(CLAIM))
    (entry,) = decode_podlist(node.files()["pod-resources/podlist.json"])
    assert all(name.startswith("nvidia") for name in entry.gpu_list)
