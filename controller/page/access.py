"""Who may look at the page, and which names they see.

Users of the web-config file have a password that was chosen for this page: they see all names. A bearer token is
checked with the API server: a token that it accepts lets its owner in, who sees the names of the namespaces whose pods
they may list. While the server does not answer, no token is accepted.
"""

from __future__ import annotations

import hmac
import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import structlog

from dracaena.controller.adapters.reviews import Identity
from dracaena.kube.errors import KubeError
from dracaena.process.basic_auth import BasicAuth
from dracaena.process.clock import Clock
from dracaena.process.http_message import HttpAnswer, HttpRequest, text_answer
from dracaena.process.resting_thread import RestingThread
from dracaena.process.turns import Turns

TRUST_S: Final = 60.0
"""How long an answer of the API server holds. For this long a user still sees what they may no longer see."""

LONGEST_TRUST_S: Final = 300.0
"""How long the right to see a namespace holds while there are too many namespaces to ask about each again: a user who
looks once a minute sees 120 namespaces. A stream lasts as long (process.http_server)."""

REFUSED_S: Final = 10.0
"""How long a refused token is refused again without asking."""

MOST_KNOWN: Final = 4_096
"""Answers kept of each kind; the one used longest ago is dropped first."""

MOST_REFUSED: Final = 256
"""Tokens that are known to be refused. They have a table of their own, so that made-up tokens push out no good one."""

MOST_ASKED: Final = 64
"""Tokens that wait to be asked about ..."""

MOST_OF_ADDRESS: Final = 16
"""... and those of one address, which may be a proxy with many readers behind it. Addresses take turns."""

REST_PER_QUESTION: Final = 1
"""The thread rests this many times as long as a question took: made-up tokens load the API server half the time with
one request at a time."""

REVIEWS_AN_ANSWER: Final = 24
"""Namespaces that are asked about for one answer of the page. Others that are not known stay hidden in it, and are
asked about for the next answer. With 5 ms each it is an eighth of a second."""

NO_ANSWER: Final = "the API server does not answer: no token can be checked"

K = TypeVar("K")
V = TypeVar("V")

log = structlog.get_logger()


class Reviews(Protocol):
    """How the API server is asked (adapters.reviews)."""

    def identify(self, token: str) -> Identity | None:
        """Return the owner of a token; None: it has none. Raises KubeError."""
        ...

    def may_list_pods(self, who: Identity, namespace: str) -> bool:
        """Return whether a user may list pods in a namespace; empty: in all namespaces. Raises KubeError."""
        ...


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user who may look."""

    identity: Identity | None
    """None: they see all names."""


EVERYTHING: Final = Viewer(None)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a viewer sees of the namespaces of an answer."""

    sight: Callable[[str], bool]
    unasked: int = 0
    """Namespaces that stay hidden because we do not know yet whether the viewer may see them; the next answer may."""


ALL_SEEN: Final = Seen(lambda namespace: True)

Then = Callable[[Viewer | HttpAnswer], None]
"""Called with the viewer, or with the refusal. From any thread."""


@dataclass(frozen=True, slots=True)
class _Question:
    token: str
    proof: bytes
    wanted: Callable[[], bool]
    then: Then


@dataclass(frozen=True, slots=True)
class _Right:
    """Whether a user may list the pods of a namespace."""

    asked_s: float
    allowed: bool


class TokenChecks:
    """Asks about tokens in a thread of its own, one at a time. start() once, then stop() once."""

    def __init__(self, reviews: Reviews, clock: Clock) -> None:
        self._reviews, self._clock = reviews, clock
        self._key = secrets.token_bytes(32)
        self._let_in: OrderedDict[bytes, tuple[float, Viewer]] = OrderedDict()  # no token is kept
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._asked = Turns[_Question](most_of_address=MOST_OF_ADDRESS, most=MOST_ASKED)
        # Do not wait for a server that hangs: the process is ending.
        self._thread = RestingThread("page-tokens", clock, take=self._asked.take, serve=self._ask, join_s=1.0)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop()

    def check(self, token: str, address: str, *, wanted: Callable[[], bool], then: Then) -> None:
        """Call `then`, now or later, with the owner of the token or the refusal. Never blocks."""
        proof = hmac.digest(self._key, token.encode("utf-8", "replace"), "sha256")
        with self._thread.changed:
            answer = self._known(proof)
            if answer is None and self._asked.add(_Question(token, proof, wanted, then), address):
                self._thread.changed.notify()
                return
        then(answer or text_answer(429, "too many tokens are being checked", ("Retry-After", "5")))

    def _known(self, proof: bytes) -> Viewer | HttpAnswer | None:
        """Return the API server's recent answer; None: there is none. The lock is held."""
        now_s = self._clock.monotonic()
        until_s, viewer = self._let_in.get(proof, (-1.0, None))
        if until_s > now_s:
            self._let_in.move_to_end(proof)
            return viewer
        return token_refused() if self._refused.get(proof, -1.0) > now_s else None

    def _ask(self, question: _Question) -> float:
        began_s = self._clock.monotonic()
        question.then(self._answer(question))
        return REST_PER_QUESTION * (self._clock.monotonic() - began_s)

    def _answer(self, question: _Question) -> Viewer | HttpAnswer:
        with self._thread.changed:  # only the first of several with one token was asked about
            known = self._known(question.proof)
        if known is not None:
            return known
        try:
            identity = self._reviews.identify(question.token)
        except KubeError as error:
            log.warning("a token cannot be checked", error=str(error))
            return text_answer(503, NO_ANSWER, ("Retry-After", "5"))
        except Exception:  # outermost on this thread: whatever a token causes, the next one has to be checked
            log.exception("a token cannot be checked")
            return text_answer(503, NO_ANSWER, ("Retry-After", "5"))
        with self._thread.changed:
            now_s = self._clock.monotonic()
            if identity is None:
                _remember(self._refused, question.proof, now_s + REFUSED_S, MOST_REFUSED)
                return token_refused()
            viewer = Viewer(identity)
            _remember(self._let_in, question.proof, (now_s + TRUST_S, viewer), MOST_KNOWN)
            return viewer


class Access:
    """Lets readers in, or says why not. start() once, then stop() once."""

    def __init__(
        self, reviews: Reviews, clock: Clock, users: Callable[[], Mapping[str, bytes]], *, is_open: bool = False
    ) -> None:
        """`users` of the web-config file; `is_open`: everyone who reaches the port sees everything."""
        self._reviews, self._clock, self._users, self._is_open = reviews, clock, users, is_open
        self._passwords = BasicAuth(clock)
        self._tokens = TokenChecks(reviews, clock)
        self._lock = threading.Lock()
        self._rights: OrderedDict[tuple[Identity, str], _Right] = OrderedDict()

    def start(self) -> None:
        """Begin to check."""
        self._passwords.start()
        self._tokens.start()

    def stop(self) -> None:
        """End the threads."""
        self._tokens.stop()
        self._passwords.stop()

    def check(self, request: HttpRequest, address: str, *, wanted: Callable[[], bool], then: Then) -> None:
        """Call `then`, now or later, with the viewer or the refusal. Never blocks."""
        if self._is_open:
            then(EVERYTHING)
            return
        authorization = request.headers.get("authorization", "")
        scheme, _, rest = authorization.partition(" ")
        users = self._users()
        if scheme.lower() == "bearer" and rest.strip():
            self._tokens.check(rest.strip(), address, wanted=wanted, then=then)
        elif scheme.lower() == "basic" and users:
            self._check_password(users, authorization, address, wanted, then)
        else:
            then(_nobody(users))

    def _check_password(
        self,
        users: Mapping[str, bytes],
        authorization: str,
        address: str,
        wanted: Callable[[], bool],
        then: Then,
    ) -> None:
        def decided(right: bool) -> None:  # noqa: FBT001 - its one input
            then(EVERYTHING if right else _nobody(users))

        if not self._passwords.check(users, authorization, address, wanted=wanted, then=decided):
            then(text_answer(429, "too many passwords of this address are being checked", ("Retry-After", "5")))

    def seen(self, viewer: Viewer, namespaces: Iterable[str]) -> Seen:
        """Return which of the namespaces a viewer may see. This may ask the API server, and blocks meanwhile; without
        an answer a namespace may not be seen.

        Few namespaces are asked about: first the unknown ones, in the order given, then those asked about longest ago.
        """
        who = viewer.identity
        if who is None:
            return ALL_SEEN
        names = ["", *dict.fromkeys(namespaces)]
        now_s = self._clock.monotonic()
        rights = self._known(who, names)
        old = [name for name in names if name not in rights or rights[name].asked_s <= now_s - TRUST_S]
        old.sort(key=lambda name: (bool(name), rights[name].asked_s if name in rights else -math.inf))
        later = set(old[REVIEWS_AN_ANSWER:])
        for name in old[:REVIEWS_AN_ANSWER]:
            right = self._ask(who, name)
            if right is None:  # names that were asked about long ago stay hidden too
                later = set()
                break
            rights[name] = right
            if right.allowed and not name:
                break
        if "" in rights and rights[""].allowed and rights[""].asked_s > now_s - TRUST_S:
            return ALL_SEEN
        held = [name for name in names if name and self._holds(rights.get(name), now_s, is_later=name in later)]
        allowed = {name for name in held if rights[name].allowed}
        return Seen(allowed.__contains__, len(names) - 1 - len(held))

    @staticmethod
    def _holds(right: _Right | None, now_s: float, *, is_later: bool) -> bool:
        return right is not None and right.asked_s > now_s - (LONGEST_TRUST_S if is_later else TRUST_S)

    def _known(self, who: Identity, names: Iterable[str]) -> dict[str, _Right]:
        found = {}
        with self._lock:
            for name in names:
                if (right := self._rights.get((who, name))) is not None:
                    self._rights.move_to_end((who, name))
                    found[name] = right
        return found

    def _ask(self, who: Identity, namespace: str) -> _Right | None:
        asked_s = self._clock.monotonic()
        try:
            right = _Right(asked_s, self._reviews.may_list_pods(who, namespace))
        except KubeError as error:
            log.warning("names stay hidden: the right to see them cannot be checked", error=str(error))
            return None
        with self._lock:
            _remember(self._rights, (who, namespace), right, MOST_KNOWN)
        return right


def _remember(known: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


def token_refused() -> HttpAnswer:
    """Return the refusal of a token that the API server does not accept."""
    return text_answer(401, "the API server does not take this token", ("WWW-Authenticate", "Bearer"))


def _nobody(users: Mapping[str, bytes]) -> HttpAnswer:
    what = "a user and its password, or a bearer token of the cluster," if users else "a bearer token of the cluster"
    # A browser itself asks for user and password when it is offered Basic; the page asks for a token.
    return text_answer(401, f"{what} is needed", ("WWW-Authenticate", "Basic" if users else "Bearer"))
