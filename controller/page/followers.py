"""The clients that follow the page by server-sent events: each gets the number of each new snapshot, and requests
what it shows. So an event contains no names and is the same for all."""

from __future__ import annotations

import threading
from typing import Final

from dracaena.process.http_message import HttpAnswer, text_answer
from dracaena.process.http_pages import Reply

MOST_FOLLOWERS: Final = 64
"""Half of the connections: the other half is for requests. Clients that come later have to ask at intervals."""

RECONNECT_MS: Final = 2_000


class Followers:
    """The clients that follow now. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replies: list[Reply] = []

    def add(self, reply: Reply, number: int) -> None:
        """Let a client follow, and tell it the number of the newest snapshot; refuse it if there are too many."""
        with self._lock:
            self._replies = [each for each in self._replies if each.wanted]
            is_full = len(self._replies) >= MOST_FOLLOWERS
            if not is_full:
                self._replies.append(reply)
        if is_full:
            reply(text_answer(503, "too many follow already: ask at intervals", ("Retry-After", "10")))
        else:
            body = f"retry: {RECONNECT_MS}\n\n".encode() + _event(number)
            reply(HttpAnswer(200, body, "text/event-stream", streams=True))

    def any(self) -> bool:
        """Return whether any client follows."""
        with self._lock:
            self._replies = [each for each in self._replies if each.wanted]
            return bool(self._replies)

    def tell(self, number: int) -> None:
        """Tell all clients the number of the newest snapshot.

        A client that came at the moment of a change may have missed it, so the number has to be sent now and then.
        """
        with self._lock:
            replies = list(self._replies)
        for reply in replies:
            reply.more(_event(number))


def _event(number: int) -> bytes:
    return f"event: change\ndata: {number}\n\n".encode()
