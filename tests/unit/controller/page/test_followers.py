"""Who follows, how many, and what each is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from dracaena.controller.page.followers import MOST_FOLLOWERS, Followers
from dracaena.process.http_message import HttpAnswer


@dataclass
class Client:
    """Implements http_pages.Reply."""

    wanted: bool = True
    answers: list[HttpAnswer] = field(default_factory=list)
    later: list[bytes] = field(default_factory=list)

    def __call__(self, answer: HttpAnswer) -> None:
        self.answers.append(answer)

    def more(self, data: bytes) -> None:
        self.later.append(data)


def test_who_follows_is_reported_where_it_stands_and_of_what_follows() -> None:
    followers, client = Followers(), Client()
    followers.add(client, 7)
    followers.tell(8)
    followers.tell(8)
    (answer,) = client.answers
    assert (answer.status, answer.streams, answer.content_type) == (200, True, "text/event-stream")
    assert answer.body.endswith(b"event: change\ndata: 7\n\n")
    assert client.later == [b"event: change\ndata: 8\n\n"] * 2


def test_who_left_makes_room_and_is_followed_by_nobody() -> None:
    followers, crowd = Followers(), [Client() for _ in range(MOST_FOLLOWERS)]
    for client in crowd:
        followers.add(client, 1)
    refused, let_in = Client(), Client()
    followers.add(refused, 1)
    assert [answer.status for answer in refused.answers] == [503]
    crowd[0].wanted = False
    followers.add(let_in, 1)
    assert [answer.status for answer in let_in.answers] == [200]
    for client in (*crowd, let_in):
        client.wanted = False
    assert not followers.any()
