"""Checks basic auth against bcrypt hashes: one check at a time, and a correct password is not checked again."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import bcrypt
import structlog

from dracaena.process.clock import Clock
from dracaena.process.resting_thread import RestingThread
from dracaena.process.turns import Turns

REST_PER_CHECK = 4
"""After a check the thread rests this many times as long as it took: guessing costs a fifth of a core, and at bcrypt's
usual cost 10 that is a few guesses per second."""

MOST_OF_ADDRESS = 4
"""The most waiting checks of one address: a client that knows the right password waits for one."""

MOST_WAITING = 256
"""The most waiting checks in total."""

_SIGNIFICANT_BYTES = 72
"""bcrypt's limit; htpasswd and Prometheus also ignore the rest of a password."""

_ANY_SALT = b"." * 22
"""Of hashes that nobody looks at."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Check:
    user: str
    known: bool
    hashed: bytes
    highest_cost: int
    """bcrypt's, of all users."""
    password: bytes
    proof: bytes
    wanted: Callable[[], bool]
    then: Callable[[bool], None]


class BasicAuth:
    """Checks passwords in a thread of its own. start() once, then stop() once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._proofs: dict[str, bytes] = {}  # user → proof of a correct password; no password is kept
        self._waiting = Turns[_Check](most_of_address=MOST_OF_ADDRESS, most=MOST_WAITING)
        self._thread = RestingThread("http-passwords", clock, take=self._waiting.take, serve=self._decide, join_s=None)

    def start(self) -> None:
        """Begin to check."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop()

    def check(
        self,
        users: Mapping[str, bytes],
        authorization: str,
        address: str,
        *,
        wanted: Callable[[], bool],
        then: Callable[[bool], None],
    ) -> bool:
        """Call `then`, now or later and from any thread, with whether the header has a user and its password.

        An unknown user takes as long as a wrong password of any user, whatever the costs of their hashes: else the time
        would tell which names there are. Addresses take turns. Returns False, without calling `then`,
        when too many checks already wait; `wanted` returns whether the client still waits.
        """
        user, password = _credentials(authorization)
        costliest = max(users.values(), key=_cost)
        hashed = users.get(user, costliest)
        proof = self._proof(user, hashed, password)
        check = _Check(user, user in users, hashed, _cost(costliest), password, proof, wanted, then)
        with self._thread.changed:
            if check.known and hmac.compare_digest(self._proofs.get(user, b""), check.proof):
                right = True
            elif not user:
                right = False
            elif self._waiting.add(check, address):
                self._thread.changed.notify()
                return True
            else:
                return False
        then(right)
        return True

    def _decide(self, check: _Check) -> float:
        began_s = self._clock.monotonic()
        right = _matches(check) and check.known
        if right:
            with self._thread.changed:
                self._proofs[check.user] = check.proof
        check.then(right)
        return REST_PER_CHECK * (self._clock.monotonic() - began_s)

    def _proof(self, user: str, hashed: bytes, password: bytes) -> bytes:
        """Of a fixed length, so that no two parts can change places; with a key that ends with the process."""
        parts = (hashlib.sha256(part).digest() for part in (user.encode(), hashed, password))
        return hmac.digest(self._key, b"".join(parts), "sha256")


def _credentials(authorization: str) -> tuple[str, bytes]:
    """Return user and password of a header; an empty user if it has none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", b""
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else ("", b"")
    except ValueError:  # no base64, no UTF-8
        return "", b""


def _cost(hashed: bytes) -> int:
    """Return the cost in a hash `$2b$10$…`: 2 to this power rounds."""
    return int(hashed[4:6])


def _matches(check: _Check) -> bool:
    """A wrong password takes the rounds of the highest cost: those of its own hash, and of each cost from there on."""
    password = check.password[:_SIGNIFICANT_BYTES]
    try:
        if bcrypt.checkpw(password, check.hashed):
            return True
        for cost in range(_cost(check.hashed), check.highest_cost):
            bcrypt.hashpw(password, b"$2b$%02d$%s" % (cost, _ANY_SALT))
        return False
    except ValueError as error:  # a hash of the right form that bcrypt still does not accept
        log.error("bcrypt cannot check a password", user=check.user if check.known else "", error=str(error))
        return False
