from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.decision import MAX_BYTES, Decision, RunnerUp, decode_decision, encode_decision
from dracaena.api.errors import BadInputError

NAMES = [f"gpu-{index:08x}-0000-0000-0000-000000000000" for index in range(16)]

DECISION = Decision(
    node="node-a",
    devices=tuple(NAMES[:4]),
    links="6 pairs NV12",
    score=(("bandwidth_gb_s", 300), ("damage_8", 300)),
    pod_devices=4,
    runner_up=RunnerUp(node="node-b", devices=tuple(NAMES[4:8]), links="6 pairs PIX", lost_by="bandwidth_gb_s"),
)


def test_what_was_encoded_is_decoded() -> None:
    assert decode_decision(encode_decision(DECISION)) == DECISION


def test_a_full_node_with_runner_up_is_written_uncut() -> None:
    whole = Decision(
        node="n" * 63,
        devices=tuple(NAMES),
        links="120 pairs NV18",
        score=DECISION.score,
        pod_devices=16,
        runner_up=RunnerUp(node="m" * 63, devices=tuple(NAMES), links="120 pairs NV18", lost_by="node"),
    )
    assert decode_decision(encode_decision(whole)) == whole


def test_the_runner_up_is_cut_before_the_devices() -> None:
    long = Decision(
        node="node-a",
        devices=tuple(NAMES) * 2,
        links="6 pairs NV12",
        score=DECISION.score,
        pod_devices=32,
        runner_up=RunnerUp(node="node-b", devices=tuple(NAMES), links="", lost_by="node"),
    )
    read = decode_decision(encode_decision(long))
    assert read.cut
    assert read.devices == long.devices
    assert read.runner_up == RunnerUp(node="node-b", devices=(), links="", lost_by="node")


texts = st.text(max_size=300)
decisions = st.builds(
    Decision,
    node=texts,
    devices=st.lists(texts, max_size=33).map(tuple),
    links=texts,
    score=st.lists(st.tuples(texts, st.integers(-(2**63), 2**63 - 1)), max_size=12).map(tuple),
    pod_devices=st.integers(0, 32),
    runner_up=st.none()
    | st.builds(RunnerUp, node=texts, devices=st.lists(texts).map(tuple), links=texts, lost_by=texts),
)


@given(decisions)
def test_no_decision_is_longer_than_the_limit_and_only_a_cut_one_differs(decision: Decision) -> None:
    text = encode_decision(decision)
    assert len(text.encode()) <= MAX_BYTES
    read = decode_decision(text)
    assert read == decision or read.cut
    assert encode_decision(read) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not decode"),
        ("[]", "does not decode"),
        ('{"v":1}', "does not decode"),
        ('{"v":2,"node":"a","devices":[],"links":"","score":[],"podDevices":1}', "has version 2, expected 1"),
    ],
)
def test_an_annotation_that_is_no_decision_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        decode_decision(text)
