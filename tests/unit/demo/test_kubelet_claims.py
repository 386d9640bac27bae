from __future__ import annotations

from pathlib import Path

from dracaena.demo.kubelet_claims import STATE_FILE, ClaimInfo, ClaimState, PluginDevice

CLAIM = ClaimInfo("uid-1", "default", "c1", ("gpu.test",), ("pod-1",))


def test_claims_outlive_a_restart_but_are_to_be_prepared_again(tmp_path: Path) -> None:
    ClaimState(tmp_path).put(CLAIM, ClaimInfo("uid-0", "default", "c0", ("gpu.test",), (), (PluginDevice((), ("a",)),)))
    assert [(info.uid, info.devices) for info in ClaimState(tmp_path).values()] == [("uid-0", None), ("uid-1", None)]


def test_a_removed_claim_is_gone_after_a_restart(tmp_path: Path) -> None:
    state = ClaimState(tmp_path)
    state.put(CLAIM)
    state.remove("uid-1")
    assert ClaimState(tmp_path).values() == ()


def test_a_broken_state_file_is_no_end(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text("[{")
    assert ClaimState(tmp_path).values() == ()


def test_pods_of_a_claim_are_kept_sorted() -> None:
    shared = CLAIM.with_pod("pod-0").with_pod("pod-1")
    assert shared.pod_uids == ("pod-0", "pod-1")
    assert shared.kept_for({"pod-1", "pod-9"}).pod_uids == ("pod-1",)
