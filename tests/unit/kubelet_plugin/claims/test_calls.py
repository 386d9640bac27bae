from __future__ import annotations

from pathlib import Path

import structlog

from dracaena.api.names import ClaimUid
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.kubelet_plugin.changes.change import Act
from dracaena.kubelet_plugin.claims.calls import ClaimCalls
from dracaena.kubelet_plugin.ports import ClaimFailure
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from support.clock import FakeClock
from support.effects import ServerFiles, served
from support.plugin import FakeClaims, PluginNode, make_claim, reference_to


class BrokenClaims(FakeClaims):
    """Has an error of its own for one claim."""

    def read_claim(self, reference: ClaimReference) -> ResourceClaim:
        if reference.name == "bug":
            raise ZeroDivisionError("secret detail")
        return super().read_claim(reference)


def test_each_claim_has_its_own_result(tmp_path: Path) -> None:
    good, held = make_claim("good", (0,)), make_claim("held", (0,))
    node = PluginNode(tmp_path, BrokenClaims(good, held))
    calls = ClaimCalls(node.context, node.state)
    gone = ClaimReference("default", "gone", ClaimUid("gone-uid"))
    bug = ClaimReference("default", "bug", ClaimUid("bug-uid"))
    results = calls.prepare_claims([bug, gone, reference_to(good), reference_to(held), reference_to(good)])
    assert list(results) == ["bug-uid", "gone-uid", "good-uid", "held-uid"]
    assert results[ClaimUid("bug-uid")] == ClaimFailure("internal error of the plugin (ZeroDivisionError), see its log")
    assert results[ClaimUid("gone-uid")] == ClaimFailure("claim default/gone is gone")
    assert isinstance(results[ClaimUid("good-uid")], PreparedClaim)
    failed = results[ClaimUid("held-uid")]
    assert isinstance(failed, ClaimFailure)
    assert "still held by claim default/good" in failed.error
    counts = {
        labels: node.metrics.claims.calls.labels(*labels)._value.get()
        for labels in [("prepare", r) for r in ("ok", "refused", "failed", "internal")]
    }
    assert list(counts.values()) == [1, 1, 1, 1]


class SlowServers(ServerFiles):
    """A server takes 12 s to start and to stop."""

    clock: FakeClock

    def _serve(self, act: Act[frozenset[str]]) -> None:
        self.clock.advance(12.0)
        super()._serve(act)


def test_all_claims_of_a_call_together_have_the_time_that_kubelet_allows(tmp_path: Path) -> None:
    claims = [make_claim(f"c{number}", (number,)) for number in range(4)]
    servers = SlowServers(tmp_path, FileSteps())
    node = PluginNode(tmp_path, FakeClaims(*claims), kind_of=served, kinds=[servers])
    servers.clock = node.clock
    calls = ClaimCalls(node.context, node.state)
    for work, left in ((calls.prepare_claims, claims), (calls.unprepare_claims, claims)):
        began_s = node.clock.monotonic()
        answers = work(map(reference_to, left))
        assert node.clock.monotonic() - began_s == 36.0
        failed = answers[ClaimUid("c3-uid")]
        assert isinstance(failed, ClaimFailure)
        assert "no time is left" in failed.error
        assert not any(isinstance(answers[ClaimUid(f"c{number}-uid")], ClaimFailure) for number in range(3))
        again = work([reference_to(claims[3])])[ClaimUid("c3-uid")]
        assert not isinstance(again, ClaimFailure), "the next call goes on"


def test_unprepare_answers_every_claim(tmp_path: Path) -> None:
    claim = make_claim("good", (0,))
    node = PluginNode(tmp_path, FakeClaims(claim))
    calls = ClaimCalls(node.context, node.state)
    calls.prepare_claims([reference_to(claim)])
    never = ClaimReference("default", "never", ClaimUid("never-uid"))
    assert calls.unprepare_claims([reference_to(claim), never]) == {"good-uid": None, "never-uid": None}


def test_all_log_lines_about_a_claim_carry_the_id_of_the_call_and_no_two_calls_share_one(tmp_path: Path) -> None:
    one, two = make_claim("one", (0,)), make_claim("two", (1,))
    node = PluginNode(tmp_path, FakeClaims(one, two))
    calls = ClaimCalls(node.context, node.state)
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        calls.prepare_claims([reference_to(one), reference_to(two)])
        calls.unprepare_claims([reference_to(one)])
    seen = [(line["call"], line["claim"], line["claim_uid"]) for line in lines]
    assert list(dict.fromkeys(seen)) == [
        ("prepare-1", "default/one", "one-uid"),
        ("prepare-1", "default/two", "two-uid"),
        ("unprepare-2", "default/one", "one-uid"),
    ]
