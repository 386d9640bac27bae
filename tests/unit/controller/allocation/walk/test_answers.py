from __future__ import annotations

import random

import pytest

from dracaena.api.config.v1alpha1 import NO_POLICY
from dracaena.controller.allocation.request import Eligibility, Question
from dracaena.controller.allocation.score.choices import Engine
from dracaena.controller.allocation.score.order import one_number
from dracaena.controller.allocation.state.node_state import NodeKind
from dracaena.controller.allocation.state.pool import read_pool
from dracaena.controller.allocation.walk import answers as module
from dracaena.controller.allocation.walk.answers import Answers
from support.allocation import DRIVER, pool_slice
from support.clusters import SMALL, SOCKETS


def kind_of(made: object) -> NodeKind:
    reading = read_pool(DRIVER, [pool_slice("n", made)])  # type: ignore[arg-type]
    assert reading.pool is not None
    return reading.pool.kind


def question(*counts: int) -> Question:
    return Question(counts, (NO_POLICY,) * len(counts), Eligibility(((),) * len(counts)))


def test_a_rank_as_one_number_sorts_as_its_parts_do() -> None:
    rng = random.Random(1)
    ranks = [tuple(rng.choice([-(2**40), -7, -1, 0, 1, 9, 2**40]) for _ in range(5)) for _ in range(300)]
    assert sorted(ranks) == sorted(ranks, key=one_number)
    assert len({one_number(rank) for rank in ranks}) == len(set(ranks))


def test_equal_questions_about_equal_kinds_are_answered_once() -> None:
    answers = Answers(Engine())
    first = answers.to(question(2)).of_kind(kind_of(SOCKETS)).of(0b1111)
    assert answers.to(question(2)).of_kind(kind_of(SOCKETS)).of(0b1111) is first
    assert answers.to(question(1)).of_kind(kind_of(SOCKETS)).of(0b1111) is not first
    assert first.best is not None
    assert first.best.mask == 0b0011


def test_what_was_asked_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWERS", 12)
    answers = Answers(Engine())
    kind = kind_of(SOCKETS)
    for free in range(8):
        answers.to(question(1)).of_kind(kind).of(free)
    kept = answers.to(question(2)).of_kind(kind).of(0b1111)
    for free in range(6):
        answers.to(question(3)).of_kind(kind).of(free)
    assert answers.to(question(2)).of_kind(kind).of(0b1111) is kept
    assert answers.to(question(1)).of_kind(kind).known == {}
    for free in range(40):
        answers.to(question(2)).of_kind(kind_of(SMALL)).of(free % 4)
        answers.to(question(free)).of_kind(kind)
        assert len(answers) <= 12 + 2
