"""What a mask hides, and what it leaves to be compared."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dracaena.demo.apiserver import ApiServer
from transcripts.abridging import abridged
from transcripts.connection import Ground
from transcripts.masks import masked
from transcripts.session import Session
from transcripts.text import transcript
from transcripts.values import marked

UID_A = "11111111-2222-4333-8444-555555555555"
UID_B = "11111111-2222-4333-8444-666666666666"


@pytest.fixture
def session() -> Iterator[Session]:
    with ApiServer() as server, Session(Ground(server.url, "", None, server.forget_history)) as session:
        yield session


def _shown(session: Session, *answers: Any, **step: Any) -> list[Any]:
    session.steps.extend({"answer": marked(answer)} | step for answer in answers)
    return [step["answer"] for step in masked(session)]


def _object(version: str, uid: str = UID_A, **metadata: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"uid": uid, "resourceVersion": version} | metadata}


def test_versions_keep_their_order(session: Session) -> None:
    shown = _shown(session, _object("9"), _object("100"), _object("12"), _object("9"))
    assert [one["metadata"]["resourceVersion"] for one in shown] == ["<rv-1>", "<rv-3>", "<rv-2>", "<rv-1>"]


def test_version_of_a_list_stands_between_those_of_objects(session: Session) -> None:
    lists = [{"kind": "PodList", "metadata": {"resourceVersion": version}} for version in ("9", "11", "12")]
    shown = _shown(session, _object("9"), _object("12"), *lists)
    assert [one["metadata"]["resourceVersion"] for one in shown[2:]] == ["<rv-1+>", "<rv-1+>", "<rv-2+>"]


def test_uids_keep_their_equality_in_texts_too(session: Session) -> None:
    shown = _shown(session, _object("1"), _object("2", UID_B), {"text": f"not {UID_B} but {UID_A}"})
    assert shown[2]["text"] == "not <uid-2> but <uid-1>"


def test_uid_that_the_server_did_not_choose_is_shown(session: Session) -> None:
    assert _shown(session, {"text": UID_A})[0]["text"] == UID_A


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a-bcdfg", "a-<suffix-1>"), ("a-abcde", "a-abcde"), ("a-bcdf", "a-bcdf"), ("b-bcdfg", "b-bcdfg")],
)
def test_suffix_is_masked_only_if_it_looks_like_one(session: Session, name: str, shown: str) -> None:
    document = {"kind": "Pod", "metadata": {"name": name, "generateName": "a-"}}
    assert _shown(session, document)[0]["metadata"]["name"] == shown


@pytest.mark.parametrize(
    ("after_s", "form", "shown"),
    [
        (0, "%Y-%m-%dT%H:%M:%SZ", "<time>"),
        (0, "%Y-%m-%dT%H:%M:%S.%fZ", "<time, µs>"),
        (31, "%Y-%m-%dT%H:%M:%SZ", "<time + 30 s>"),
        (92, "%Y-%m-%dT%H:%M:%SZ", "<time + 90 s>"),
    ],
)
def test_times_of_the_run_keep_their_form_and_distance(session: Session, after_s: float, form: str, shown: str) -> None:
    text = (datetime.now(UTC) + timedelta(seconds=after_s)).strftime(form)
    assert _shown(session, {"time": text})[0]["time"] == shown


@pytest.mark.parametrize("time", ["2026-01-01T00:00:00Z", "2020-01-01T00:00:00.000000Z"])
def test_times_of_a_scenario_are_shown(session: Session, time: str) -> None:
    assert _shown(session, {"time": time})[0]["time"] == time


def _refusal(*causes: tuple[str, str, str], message: str) -> dict[str, Any]:
    listed = [{"reason": reason, "field": field, "message": text} for field, reason, text in causes]
    return {"kind": "Status", "reason": "Invalid", "message": message, "details": {"causes": listed}, "code": 422}


def test_of_a_refusal_reasons_and_fields_are_shown_and_neither_words_nor_order(session: Session) -> None:
    one = _refusal(("b", "X", "2"), ("a", "Y", "1"), message="one")
    other = _refusal(
        ("a", "Y", "4"), ("a", "FieldValueInvalid", "5"), ("b", "X", "3"), ("b", "X", "6"), message="other"
    )
    first, second = _shown(session, one, other)
    assert first == second
    causes = [{"reason": "Y", "field": "a"}, {"reason": "X", "field": "b"}]
    assert first == {"kind": "Status", "reason": "Invalid", "details": {"causes": causes}, "code": 422}


@pytest.mark.parametrize("change", [("c", "X", ""), ("b", "Z", "")])
def test_another_field_or_reason_of_a_cause_is_seen(session: Session, change: tuple[str, str, str]) -> None:
    first, second = _shown(session, _refusal(("b", "X", ""), message=""), _refusal(change, message=""))
    assert first != second


def test_warnings_are_counted_and_owners_of_fields_left_out(session: Session) -> None:
    headers = {"Warning": '299 - "one \\"x\\", two", 299 - "three"', "Allow": "GET"}
    session.steps.append({"headers": headers, "answer": marked(_object("1", managedFields=[{"manager": "m"}]))})
    (step,) = masked(session)
    assert step["headers"] == {"Warning": '299 - "<text>", 299 - "<text>"', "Allow": "GET"}
    assert step["answer"]["metadata"].keys() == {"uid", "resourceVersion"}


def test_a_refusal_is_shown_by_its_reason_details_and_the_reasons_by_field() -> None:
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    causes = [{"reason": "FieldValueRequired", "field": "spec.x"}, {"reason": "Odd", "field": "y"}]
    invalid = head | {"reason": "Invalid", "details": {"name": "a", "causes": causes}, "code": 422}
    bare = head | {"code": 500}
    steps = abridged([{"status": 422, "answer": invalid}, {"status": 422, "answer": bare}])
    assert [step["answer"] for step in steps] == [
        {"refused": "Invalid", "about": {"name": "a"}, "causes": {"spec.x": "Required", "y": "Odd"}},
        {"refused": "", "code": 500},
    ]


def test_object_is_shown_by_what_changed_since_it_was_shown() -> None:
    before = _object("1", labels={"a": "1", "b": "1"}, finalizers=["x"]) | {"status": {}}
    after = _object("2", labels={"a": "1", "b": "2"}, finalizers=["x", "y"]) | {"spec": {}}
    steps = abridged([{"answer": before}, {"answer": before}, {"answer": {"items": [after]}}])
    assert steps[0]["answer"] == before
    assert steps[1]["answer"] == {"as before": UID_A}
    metadata = {"resourceVersion": "2", "labels": {"b": "2"}, "finalizers": ["<same>", "y"]}
    change = {"metadata": metadata, "spec": {}, "status": "<gone>"}
    assert steps[2]["answer"] == {"items": [{"as before": UID_A, "but": change}]}


def test_a_new_object_is_shown_beside_the_last_of_its_kind() -> None:
    one, other = _object("1", labels={"a": "1"}) | {"spec": {"x": 1}}, _object("2", UID_B) | {"spec": {"x": 1, "y": 2}}
    stranger = _object("3", "11111111-2222-4333-8444-777777777777") | {"kind": "Node"}
    steps = abridged([{"answer": one}, {"answer": other}, {"answer": stranger}])
    metadata = {"uid": UID_B, "resourceVersion": "2", "labels": "<gone>"}
    change = {"metadata": metadata, "spec": {"y": 2}}
    assert [step["answer"] for step in steps] == [one, {"like": UID_A, "but": change}, stranger]


def test_text_of_a_transcript_is_yaml_in_lines_that_can_be_read() -> None:
    text = transcript("a title", [{"step": "one", "answer": {"a": [1, {"b": "x" * 60}], "c": {"d": "y" * 60}}}])
    assert text.splitlines()[1:] == [
        "scenario: a title",
        "",
        "- step: one",
        "  answer:",
        f"    a: [1, {{b: {'x' * 60}}}]",
        f"    c: {{d: {'y' * 60}}}",
    ]
