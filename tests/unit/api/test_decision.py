from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dracaena.api.decision import (
    MAX_BYTES,
    Decision,
    RunnerUp,
    decision_config,
    decision_document,
    decode_decision,
    describe,
    describe_one_gpu,
    encode_decision,
    parts_in_words,
    read_decision,
)
from dracaena.api.errors import BadInputError
from dracaena.api.go_json import as_go_writes
from dracaena.api.limits import DRIVER_NAME_BYTES
from dracaena.api.names import decision_driver
from support.allocation import DRIVER, claim, decided, holding

NAMES = [f"gpu-{index:08x}-0000-0000-0000-000000000000" for index in range(16)]

DECISION = Decision(
    node="node-a",
    links="6 pairs NV12",
    score=(("bandwidth_gb_s", 300), ("damage_8_gb_s", 300), ("worst_level", 30), ("bound_level", 0), ("numa_nodes", 1)),
    pod_devices=4,
    runner_up=RunnerUp(
        node="node-b",
        devices=tuple(NAMES[4:8]),
        links="6 pairs PIX",
        lost_by="bandwidth_gb_s",
        score=(("bandwidth_gb_s", 13), ("damage_8_gb_s", 0)),
    ),
    others=(("worse in bandwidth", 7), ("cordoned", 2)),
)


def test_what_was_encoded_is_decoded() -> None:
    assert decode_decision(encode_decision(DECISION)) == DECISION


def test_a_full_node_with_runner_up_is_written_uncut() -> None:
    whole = Decision(
        node="n" * 63,
        links="120 pairs NV18",
        score=DECISION.score,
        pod_devices=16,
        runner_up=RunnerUp(node="m" * 63, devices=tuple(NAMES), links="120 pairs NV18", lost_by="node"),
    )
    assert decode_decision(encode_decision(whole)) == whole


def test_the_runner_ups_devices_are_cut_before_all_else() -> None:
    second = RunnerUp(node="node-b", devices=tuple(NAMES) * 3, links="", lost_by="node")
    read = decode_decision(encode_decision(replace(DECISION, runner_up=second)))
    assert read == replace(DECISION, runner_up=replace(second, devices=()), cut=True)


def test_reasons_are_cut_before_the_runner_up_and_its_score() -> None:
    long = replace(DECISION, others=tuple((f"reason {number} {'x' * 80}", 1) for number in range(20)))
    read = decode_decision(encode_decision(long))
    assert (read.cut, read.others) == (True, ())
    assert read.runner_up is not None
    assert (read.runner_up.devices, read.runner_up.score) == (
        (),
        DECISION.runner_up.score if DECISION.runner_up else (),
    )


def test_it_is_written_as_kube_apiserver_stores_it() -> None:
    """At a patch of anything else, other bytes would count as a change of the allocation, which is immutable."""
    written = bytes(encode_decision(replace(DECISION, links="<&>")))
    assert written == bytes(as_go_writes(msgspec.Raw(written)))
    assert written.startswith(b'{"apiVersion":"gpu.dracaena.dev/v1alpha1","kind":"Decision"')


@pytest.mark.parametrize("driver", ["gpu.dracaena.dev", "g" * 52 + ".example.a", "g" * 53 + ".example.a"])
def test_the_entry_names_a_driver_that_the_api_allows_and_that_is_no_other(driver: str) -> None:
    entry = decision_config(DECISION, driver)
    assert (entry["source"], entry["opaque"]["driver"]) == ("FromClass", decision_driver(driver))
    assert len(decision_driver(driver)) <= DRIVER_NAME_BYTES
    assert decision_driver(driver) != driver
    assert not decision_driver(driver).endswith((".", "-"))


def test_what_was_written_last_with_an_allocation_is_read() -> None:
    """A class may have a config for that name too, and a user's own carries another source."""
    held = holding(claim("c"), "node-a", NAMES[0])
    assert read_decision(held, DRIVER) is None
    assert read_decision(decided(decided(held), DECISION), DRIVER) == DECISION
    assert read_decision(claim("c"), DRIVER) is None


def test_people_read_the_part_that_decided_and_all_parts_with_their_units_if_they_want() -> None:
    rest = (
        "; next best: 6 pairs PIX on node-b, worse in bandwidth: 13 GB/s; other nodes: 7 worse in bandwidth, 2 cordoned"
    )
    assert describe(DECISION) == "4 of the GPUs of node-a: 6 pairs NV12 (bandwidth: 300 GB/s)" + rest
    assert describe(DECISION, wide=True) == (
        "4 of the GPUs of node-a: 6 pairs NV12 (bandwidth: 300 GB/s, damage to groups of 8: 300 GB/s, "
        "worst level: PHB, NUMA nodes: 1)" + rest
    )


def test_nothing_of_the_score_is_shown_where_no_part_of_it_decided() -> None:
    assert DECISION.runner_up is not None
    equal = replace(DECISION, runner_up=replace(DECISION.runner_up, lost_by="node_name"), others=())
    assert describe(equal) == (
        "4 of the GPUs of node-a: 6 pairs NV12; "
        "next best: 6 pairs PIX on node-b, equal but for the order of its node name"
    )
    assert describe(replace(equal, runner_up=None)) == "4 of the GPUs of node-a: 6 pairs NV12"


def test_rings_are_reported_in_words() -> None:
    score = (("bandwidth_gb_s", 50), ("ring_gb_s", 25), ("damage_ring_gb_s", 0))
    assert parts_in_words(score) == "bandwidth: 50 GB/s, slowest hop of the best ring: 25 GB/s, damage to rings: 0 GB/s"


def test_what_compares_nodes_is_reported_in_words() -> None:
    score = (("net_gain_gpus", -1), ("bandwidth_percent_of_ideal", 98), ("free_gpus", 4), ("loss_milligpus", 1250))
    assert parts_in_words(score) == (
        "net gain in GPUs: -1, share of the ideal bandwidth: 98 %, free GPUs: 4, loss of other pods: 1.25 GPUs"
    )


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (0, "kept whole for pods of 8: next best, one GPU on b, would have cost them 300 GB/s"),
        (100, "least lost (100 GB/s) for pods of 8: next best, one GPU on b, would have cost them 300 GB/s"),
    ],
)
def test_damage_is_reported_as_what_is_kept_for_which_pods(mine: int, words: str) -> None:
    second = RunnerUp("b", "one GPU", "damage_8_gb_s", (), (("bandwidth_gb_s", 0), ("damage_8_gb_s", 300)))
    one = Decision("a", "one GPU", (("bandwidth_gb_s", 0), ("damage_8_gb_s", mine)), 1, second)
    assert describe(one) == f"1 of the GPUs of a: one GPU; {words}"
    assert describe_one_gpu(replace(one, others=(("with fewer than 8 free GPUs", 3),))) == describe(one)


@pytest.mark.parametrize(
    ("lost_by", "words"),
    [("bandwidth_gb_s", "worse in bandwidth"), ("damage_8_gb_s", "worse in damage to groups of 8")],
)
def test_a_next_best_whose_score_was_cut_is_still_said_to_be_worse(lost_by: str, words: str) -> None:
    second = RunnerUp("b", "one GPU", lost_by)
    assert describe(replace(DECISION, runner_up=second)).partition("on b, ")[2].startswith(words)


def test_programs_read_scores_and_reasons_as_objects() -> None:
    document = decision_document(DECISION)
    assert document["score"]["bandwidth_gb_s"] == 300
    assert document["runnerUp"]["score"] == {"bandwidth_gb_s": 13, "damage_8_gb_s": 0}
    assert document["others"] == {"worse in bandwidth": 7, "cordoned": 2}
    assert document["podDevices"] == 4
    assert "runnerUp" not in decision_document(replace(DECISION, runner_up=None))


texts = st.text(max_size=300)
parts = st.lists(st.tuples(texts, st.integers(-(2**63), 2**63 - 1)), max_size=12).map(tuple)
decisions = st.builds(
    Decision,
    node=texts,
    links=texts,
    score=parts,
    pod_devices=st.integers(0, 32),
    runner_up=st.none()
    | st.builds(RunnerUp, node=texts, devices=st.lists(texts).map(tuple), links=texts, lost_by=texts, score=parts),
    others=parts,
)
WRITTEN = bytes(encode_decision(DECISION))


@given(decisions)
def test_no_decision_is_longer_than_the_limit_and_only_a_cut_one_differs(decision: Decision) -> None:
    text = bytes(encode_decision(decision))
    assert len(text) <= MAX_BYTES
    read = decode_decision(text)
    assert read == decision or read.cut
    assert bytes(encode_decision(read)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "does not decode"),
        (b"[]", "does not decode"),
        (b'{"node":"a","links":"","score":[],"podDevices":1}', "does not decode"),
        (
            WRITTEN.replace(b"v1alpha1", b"v2"),
            "is a Decision of gpu.dracaena.dev/v2, expected Decision of gpu",
        ),
        (WRITTEN.replace(b'"Decision"', b'"GpuConfig"'), "is a GpuConfig of gpu.dracaena.dev/v1alpha1, expected"),
    ],
)
def test_parameters_that_are_no_decision_are_refused(text: bytes, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        decode_decision(text)
