from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import bcrypt
import pytest

from dracaena.process.basic_auth import MOST_OF_ADDRESS, MOST_WAITING, BasicAuth
from support.clock import FakeClock

USERS = {"a": bcrypt.hashpw(b"right", bcrypt.gensalt(4)), "b": bcrypt.hashpw(b"b" * 72, bcrypt.gensalt(4))}


class Gate:
    """Counts bcrypt's checks, and lets them through when it is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.checked: list[bytes] = []
        self._check = bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self._checkpw)

    def _checkpw(self, password: bytes, hashed: bytes) -> bool:
        assert self.open.wait(30)
        self.checked.append(password)
        return self._check(password, hashed)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def auth(gate: Gate) -> Iterator[BasicAuth]:
    auth = BasicAuth(FakeClock())
    auth.start()
    yield auth
    gate.open.set()
    auth.stop()


def header(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Asked:
    """What came of one check."""

    def __init__(
        self, auth: BasicAuth, authorization: str, address: str = "10.0.0.1", wanted: Callable[[], bool] = lambda: True
    ) -> None:
        self._told = threading.Event()
        self._right = False
        self.taken = auth.check(USERS, authorization, address, wanted=wanted, then=self._tell)

    def _tell(self, right: bool) -> None:
        assert not self._told.is_set()
        self._right = right
        self._told.set()

    @property
    def right(self) -> bool:
        assert self._told.wait(10)
        return self._right


@pytest.mark.parametrize(
    ("authorization", "right"),
    [
        (header("a", "right"), True),
        (header("a", "right").replace("Basic", "basic"), True),
        (header("b", "b" * 72), True),
        (header("b", "b" * 71), False),
        (header("a", "wrong"), False),
        (header("a", ""), False),
        (header("", "right"), False),
        (header("c", "right"), False),
        (header("A", "right"), False),
        (header("a", "right\x00"), False),
        ("", False),
        ("Basic", False),
        ("Basic !!!", False),
        ("Basic " + base64.b64encode(b"a").decode(), False),
        ("Basic " + base64.b64encode(b"\xff:right").decode(), False),
        ("Bearer " + base64.b64encode(b"a:right").decode(), False),
    ],
)
def test_user_and_password_must_be_right(auth: BasicAuth, authorization: str, right: bool) -> None:
    for _ in range(2):
        assert Asked(auth, authorization).right is right


def test_password_is_compared_as_far_as_bcrypt_reads_it(auth: BasicAuth) -> None:
    """As htpasswd and Prometheus do."""
    assert Asked(auth, header("b", "b" * 100)).right


def test_unknown_user_costs_what_a_wrong_password_costs(auth: BasicAuth, gate: Gate) -> None:
    assert not Asked(auth, header("nobody", "right")).right
    assert gate.checked == [b"right"]


@pytest.mark.parametrize("user", ["cheap", "usual", "costly", "nobody"])
def test_a_wrong_password_takes_the_same_rounds_whoever_is_named(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    """Rounds, not seconds: a hash of cost 6 takes four times as long as one of cost 4, and would give its user away."""
    users = {
        name: bcrypt.hashpw(name.encode(), bcrypt.gensalt(cost))
        for name, cost in (("usual", 5), ("cheap", 4), ("costly", 7))
    }
    rounds: list[int] = []
    check, make = bcrypt.checkpw, bcrypt.hashpw

    def checked(password: bytes, hashed: bytes) -> bool:
        rounds.append(1 << int(hashed[4:6]))
        return check(password, hashed)

    def made(password: bytes, salt: bytes) -> bytes:
        rounds.append(1 << int(salt[4:6]))
        return make(password, salt)

    monkeypatch.setattr(bcrypt, "checkpw", checked)
    monkeypatch.setattr(bcrypt, "hashpw", made)
    told: SimpleQueue[bool] = SimpleQueue()
    auth = BasicAuth(FakeClock())
    auth.start()
    try:
        auth.check(users, header(user, "wrong"), "10.0.0.1", wanted=lambda: True, then=told.put)
        assert told.get(timeout=30) is False
    finally:
        auth.stop()
    assert sum(rounds) == 1 << 7


def test_who_was_right_is_not_checked_again(auth: BasicAuth, gate: Gate) -> None:
    for _ in range(3):
        assert Asked(auth, header("a", "right")).right
    assert len(gate.checked) == 1
    assert not Asked(auth, header("a", "wrong")).right
    assert Asked(auth, header("a", "right")).right
    assert len(gate.checked) == 2


def test_who_was_right_waits_for_nobody(auth: BasicAuth, gate: Gate) -> None:
    assert Asked(auth, header("a", "right")).right
    gate.open.clear()
    guesses = [Asked(auth, header("a", f"{number}"), f"10.0.0.{number}") for number in range(9)]
    assert Asked(auth, header("a", "right")).right
    assert all(guess.taken for guess in guesses)


def test_no_password_is_kept(auth: BasicAuth) -> None:
    assert Asked(auth, header("a", "right")).right
    assert b"right" not in b"".join(auth._proofs.values())


def test_addresses_take_turns(auth: BasicAuth, gate: Gate) -> None:
    gate.open.clear()
    first = Asked(auth, header("a", "first"), "10.0.0.9")
    while auth._waiting:  # until the thread has taken it
        threading.Event().wait(0.001)
    guesses = [Asked(auth, header("a", f"guess {number}")) for number in range(4)]
    honest = Asked(auth, header("a", "right"), "10.0.0.2")
    gate.open.set()
    assert honest.right
    assert not any(each.right for each in (first, *guesses))
    assert gate.checked == [b"first", b"guess 0", b"right", b"guess 1", b"guess 2", b"guess 3"]


def test_one_address_has_few_checks_that_wait(auth: BasicAuth, gate: Gate) -> None:
    gate.open.clear()
    taken = [Asked(auth, header("a", f"{number}")).taken for number in range(20)]
    assert sum(taken) in (MOST_OF_ADDRESS, MOST_OF_ADDRESS + 1)  # and the one that is being made
    assert Asked(auth, header("a", "right"), "10.0.0.2").taken


def test_checks_of_clients_that_left_are_dropped(auth: BasicAuth, gate: Gate) -> None:
    gate.open.clear()
    for number in range(2 * MOST_WAITING):
        assert Asked(auth, header("a", f"{number}"), f"{number}", wanted=lambda: False).taken
    assert len(auth._waiting) <= 1
    honest = Asked(auth, header("a", "right"))
    gate.open.set()
    assert honest.right
    assert len(gate.checked) <= 2


def test_checks_that_wait_are_bounded_in_all(auth: BasicAuth, gate: Gate) -> None:
    gate.open.clear()
    taken = sum(Asked(auth, header("a", f"{number}"), f"{number}").taken for number in range(2 * MOST_WAITING))
    assert taken in (MOST_WAITING, MOST_WAITING + 1)
