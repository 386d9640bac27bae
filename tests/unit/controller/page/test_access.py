"""What is asked of the API server, how long its answers hold, and how much of it made-up tokens can cause."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from dracaena.controller.adapters.reviews import Identity
from dracaena.controller.page.access import (
    EVERYTHING,
    LONGEST_TRUST_S,
    MOST_ASKED,
    MOST_OF_ADDRESS,
    REFUSED_S,
    REVIEWS_AN_ANSWER,
    TRUST_S,
    Access,
    TokenChecks,
    Viewer,
)
from dracaena.process.http_message import HttpAnswer
from support.clock import FakeClock, IdleClock
from support.kube import wait_for
from support.reviews import ScriptedReviews

DEV = Identity("dev")


@pytest.fixture
def clock() -> IdleClock:
    return IdleClock()


@pytest.fixture
def reviews() -> ScriptedReviews:
    made = ScriptedReviews()
    made.tokens = {"of-dev": DEV}
    return made


@pytest.fixture
def tokens(reviews: ScriptedReviews, clock: FakeClock) -> Iterator[TokenChecks]:
    made = TokenChecks(reviews, clock)
    made.start()
    yield made
    made.stop()


def answer(tokens: TokenChecks, token: str, address: str = "192.0.2.1") -> Viewer | HttpAnswer:
    told = threading.Event()
    answers: list[Viewer | HttpAnswer] = []

    def then(who: Viewer | HttpAnswer) -> None:
        answers.append(who)
        told.set()

    tokens.check(token, address, wanted=lambda: True, then=then)
    assert told.wait(30)
    return answers[0]


def status(found: Viewer | HttpAnswer) -> int:
    return found.status if isinstance(found, HttpAnswer) else 200


def pass_time(clock: IdleClock, seconds: float) -> None:
    """Let time go by once the thread is done with its last question: it would rest as long as that took."""
    wait_for(lambda: "page-tokens" in clock.idle, "the end of the question")
    clock.advance(seconds)


def test_an_answer_holds_for_a_while_and_is_then_asked_for_again(
    tokens: TokenChecks, reviews: ScriptedReviews, clock: IdleClock
) -> None:
    assert answer(tokens, "of-dev") == Viewer(DEV)
    assert answer(tokens, "of-dev") == Viewer(DEV)
    assert reviews.identified == ["of-dev"]
    reviews.tokens.clear()
    pass_time(clock, TRUST_S)
    assert status(answer(tokens, "of-dev")) == 401
    assert status(answer(tokens, "of-dev")) == 401
    assert len(reviews.identified) == 2
    reviews.tokens["of-dev"] = DEV
    pass_time(clock, REFUSED_S)
    assert status(answer(tokens, "of-dev")) == 200


def test_what_the_server_did_not_answer_is_refused_and_not_kept(tokens: TokenChecks, reviews: ScriptedReviews) -> None:
    reviews.is_down = True
    assert status(answer(tokens, "of-dev")) == 503
    reviews.is_down = False
    assert status(answer(tokens, "of-dev")) == 200


def test_a_fault_of_ours_refuses_and_the_next_token_is_checked(
    tokens: TokenChecks, reviews: ScriptedReviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(token: str) -> Identity | None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(reviews, "identify", broken)
        assert status(answer(tokens, "of-dev")) == 503
    assert status(answer(tokens, "of-dev")) == 200


def test_of_a_flood_of_tokens_few_wait_and_one_is_asked_about_at_a_time(
    tokens: TokenChecks, reviews: ScriptedReviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    at_once, most = 0, 0
    real = reviews.identify

    def slow(token: str) -> Identity | None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        assert go.wait(30)
        at_once -= 1
        return real(token)

    monkeypatch.setattr(reviews, "identify", slow)
    statuses: list[int] = []
    for number in range(10 * MOST_ASKED):
        address = f"192.0.2.{number % 20}"
        tokens.check(f"made-up-{number}", address, wanted=lambda: True, then=lambda who: statuses.append(status(who)))
    assert statuses.count(429) >= 9 * MOST_ASKED - 1
    go.set()
    wait_for(lambda: len(statuses) == 10 * MOST_ASKED, "all are answered")
    assert most == 1


def test_made_up_tokens_push_out_no_good_one(
    tokens: TokenChecks, reviews: ScriptedReviews, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dracaena.controller.page.access.MOST_KNOWN", 8)
    monkeypatch.setattr("dracaena.controller.page.access.MOST_REFUSED", 4)
    assert status(answer(tokens, "of-dev")) == 200
    for number in range(30):
        assert status(answer(tokens, f"made-up-{number}")) == 401
    assert status(answer(tokens, "of-dev")) == 200
    assert reviews.identified.count("of-dev") == 1
    assert len(tokens._refused) == 4


def test_of_good_tokens_the_one_that_was_used_longest_ago_goes(
    tokens: TokenChecks, reviews: ScriptedReviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dracaena.controller.page.access.MOST_KNOWN", 8)
    reviews.tokens |= {f"other-{number}": Identity(f"other-{number}") for number in range(30)}
    for number in range(30):
        assert status(answer(tokens, f"other-{number}")) == 200
        assert status(answer(tokens, "of-dev")) == 200
    assert reviews.identified.count("of-dev") == 1
    assert len(tokens._let_in) == 8


def test_a_flood_of_one_address_leaves_places_and_the_next_turn_to_others(
    tokens: TokenChecks, reviews: ScriptedReviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, asked = threading.Event(), threading.Event()
    real = reviews.identify

    def slow(token: str) -> Identity | None:
        asked.set()
        assert go.wait(30)
        return real(token)

    monkeypatch.setattr(reviews, "identify", slow)
    statuses: list[int] = []
    for number in range(3 * MOST_OF_ADDRESS):
        tokens.check(
            f"made-up-{number}", "192.0.2.2", wanted=lambda: True, then=lambda who: statuses.append(status(who))
        )
        assert asked.wait(30)
    assert statuses == [429] * (2 * MOST_OF_ADDRESS - 1)
    told = threading.Event()
    tokens.check("of-dev", "192.0.2.1", wanted=lambda: True, then=lambda who: told.set())
    go.set()
    assert told.wait(30)
    assert reviews.identified.index("of-dev") <= 2


def test_tokens_of_clients_that_left_are_not_asked_about(tokens: TokenChecks, reviews: ScriptedReviews) -> None:
    for number in range(10):
        tokens.check(f"left-{number}", "192.0.2.1", wanted=lambda: False, then=lambda who: None)
    assert status(answer(tokens, "of-dev")) == 200
    assert reviews.identified == ["of-dev"]


def seen(access: Access, names: list[str], who: Identity | None = DEV) -> Callable[[str], bool]:
    return access.seen(Viewer(who), names).sight


def test_rights_are_asked_for_once_and_again_after_a_while(reviews: ScriptedReviews, clock: FakeClock) -> None:
    access = Access(reviews, clock, dict)
    reviews.rights = {("dev", "team")}
    for _ in range(3):
        sight = seen(access, ["team", "other"])
        assert (sight("team"), sight("other"), sight("not-asked")) == (True, False, False)
    assert reviews.asked == [("dev", ""), ("dev", "team"), ("dev", "other")]
    reviews.rights.clear()
    clock.advance(TRUST_S)
    assert not seen(access, ["team"])("team")


def test_the_right_to_list_all_pods_needs_one_question(reviews: ScriptedReviews, clock: FakeClock) -> None:
    reviews.rights = {("dev", "")}
    sight = seen(Access(reviews, clock, dict), [f"n{number}" for number in range(999)])
    assert sight("n5")
    assert reviews.asked == [("dev", "")]


def test_one_answer_asks_about_few_namespaces_and_the_next_goes_on(reviews: ScriptedReviews, clock: FakeClock) -> None:
    access = Access(reviews, clock, dict)
    names = [f"n{number:03}" for number in range(3 * REVIEWS_AN_ANSWER)]
    reviews.rights = {("dev", name) for name in names}
    counts = [sum(map(seen(access, names), names)) for _ in range(4)]
    assert counts[0] == REVIEWS_AN_ANSWER - 1
    assert counts == sorted(counts)
    assert counts[3] == len(names)


def test_whoever_looks_once_a_minute_sees_all_namespaces_after_some_looks(
    reviews: ScriptedReviews, clock: FakeClock
) -> None:
    access = Access(reviews, clock, dict)
    names = [f"n{number:03}" for number in range(4 * REVIEWS_AN_ANSWER)]
    reviews.rights = {("dev", name) for name in names}
    counts, unasked = [], []
    for _ in range(9):
        found = access.seen(Viewer(DEV), names)
        counts.append(sum(map(found.sight, names)))
        unasked.append(found.unasked)
        clock.advance(TRUST_S)
    assert counts[5:] == 4 * [len(names)]
    assert [count + rest for count, rest in zip(counts, unasked, strict=True)] == 9 * [len(names)]


def test_a_right_that_was_taken_away_is_gone_for_good_soon(reviews: ScriptedReviews, clock: FakeClock) -> None:
    access = Access(reviews, clock, dict)
    names = [f"n{number:03}" for number in range(10 * REVIEWS_AN_ANSWER)]
    reviews.rights = {("dev", name) for name in names}
    for _ in range(12):
        access.seen(Viewer(DEV), names)
    reviews.rights.clear()
    clock.advance(TRUST_S)
    assert any(map(seen(access, names), names)), "not all can be asked about at once"
    clock.advance(LONGEST_TRUST_S - TRUST_S)
    assert not any(map(seen(access, names), names))


def test_what_was_asked_long_ago_is_not_shown_while_the_server_is_away(
    reviews: ScriptedReviews, clock: FakeClock
) -> None:
    access = Access(reviews, clock, dict)
    reviews.rights = {("dev", "team")}
    assert seen(access, ["team"])("team")
    reviews.is_down = True
    assert seen(access, ["team", "other"])("team")
    clock.advance(TRUST_S)
    found = access.seen(Viewer(DEV), ["team", *(f"n{number}" for number in range(99))])
    assert (found.sight("team"), found.unasked) == (False, 100)


def test_names_are_hidden_where_the_server_does_not_answer(reviews: ScriptedReviews, clock: FakeClock) -> None:
    access = Access(reviews, clock, dict)
    reviews.rights, reviews.is_down = {("dev", "team")}, True
    assert not seen(access, ["team"])("team")
    reviews.is_down = False
    assert seen(access, ["team"])("team")


def test_whoever_has_a_password_sees_all_names_unasked(reviews: ScriptedReviews, clock: FakeClock) -> None:
    assert Access(reviews, clock, dict).seen(EVERYTHING, ["team"]).sight("anything")
    assert not reviews.asked
