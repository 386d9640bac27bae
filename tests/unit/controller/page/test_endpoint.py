"""The page over HTTP: who gets in, who sees which names, and what 1,000 connections cost others."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import bcrypt
import msgspec
import pytest
import yaml

from dracaena.api.errors import BadInputError, TemporaryError
from dracaena.api.objects import Namespace, ObjectMeta, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.adapters.reviews import Identity
from dracaena.controller.allocation.explanation import Reasons
from dracaena.controller.page.access import NO_ANSWER, REVIEWS_AN_ANSWER
from dracaena.controller.page.endpoint import CONTENT_POLICY, FILES, PageEndpoint
from dracaena.controller.page.followers import MOST_FOLLOWERS
from dracaena.controller.page.node_use import NodeUse
from dracaena.controller.views.snapshot import WaitingPod, Watched
from dracaena.process.clock import SystemClock
from dracaena.process.http_message import text_answer
from dracaena.process.http_pages import Reply
from support.allocation import DRIVER, allocated, blocks, claim, device_name, holding, machine, node, pod, pool_slice
from support.http_probe import connect, get, is_closed
from support.page import PageCluster, serving_page
from support.reviews import ScriptedReviews

FOUR = machine("four", blocks(2, 2, inside="NV12", outside="SYS"), product_name="T4")
HOSTILE, HONEST = "127.0.0.2", "127.0.0.1"
MARKUP = '"><img src=x onerror=alert(1)>'


def pod_in(namespace: str, name: str) -> Pod:
    made = pod(name)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, namespace=namespace))


def used(namespace: str, name: str, ordinal: int) -> ResourceClaim:
    base = claim(name)
    base = msgspec.structs.replace(base, metadata=msgspec.structs.replace(base.metadata, namespace=namespace))
    held = holding(base, "n", device_name(FOUR, ordinal))
    assert held.status.allocation is not None
    document = msgspec.to_builtins(held.status.allocation)
    return allocated(base, document, pod_in(namespace, f"pod-of-{name}"))


@pytest.fixture
def cluster() -> PageCluster:
    made = PageCluster()
    waits = WaitingPod("team", "waiter", "unsatisfiable", Reasons("0/1 nodes fit"), 5.0)
    hidden = WaitingPod("secret", "other-waiter", "unsatisfiable", Reasons("0/1 nodes fit"), 6.0)
    claims = (used("team", "ours", 0), used("secret", "theirs", 1))
    made.watched = Watched((node("n"),), (pool_slice("n", FOUR),), claims, (waits, hidden))
    made.pods = {"team/pod-of-ours": pod_in("team", "pod-of-ours"), "secret/p": pod_in("secret", "p")}
    return made


@pytest.fixture
def reviews() -> ScriptedReviews:
    made = ScriptedReviews()
    made.tokens = {"of-admin": Identity("admin"), "of-dev": Identity("dev"), "of-guest": Identity("guest")}
    made.rights = {("admin", ""), ("dev", "team")}
    return made


@pytest.fixture
def endpoint(cluster: PageCluster, reviews: ScriptedReviews) -> Iterator[PageEndpoint]:
    with serving_page(cluster, reviews) as made:
        yield made


@pytest.fixture
def with_password(tmp_path: Path) -> str:
    path = tmp_path / "web-config.yml"
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    path.write_text(yaml.safe_dump({"basic_auth_users": {"admin": hashed}}))
    return str(path)


def ask(endpoint: PageEndpoint, path: str, token: str = "", **how: Any) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    status, text, _ = get(endpoint.port, path, headers=headers, timeout_s=20.0, **how)
    return status, text


ALL = (
    "/api/summary",
    "/api/fleet",
    "/api/waiting",
    "/api/teams",
    "/api/search?q=wait",
    "/api/node?name=n",
    "/graph",
    "/usage",
    "/api/pod?namespace=team&name=pod-of-ours",
    "/api/team?namespace=team",
)
OF_ONE_TEAM = ALL[-2:]
"""Not there for readers who may not see that team."""


@pytest.mark.parametrize("path", [*ALL, "/api/events"])
def test_nothing_of_the_cluster_is_reported_without_a_right(
    endpoint: PageEndpoint, cluster: PageCluster, path: str
) -> None:
    for headers, wanted in (
        ({}, "Bearer"),
        ({"Authorization": "Bearer made-up"}, "Bearer"),
        ({"Authorization": "Basic " + base64.b64encode(b"admin:right").decode()}, "Bearer"),
        ({"Authorization": "Negotiate of-admin"}, "Bearer"),
        ({"Authorization": "Bearer "}, "Bearer"),
    ):
        status, text, answered = get(endpoint.port, path, headers=headers)
        assert (status, answered["WWW-Authenticate"]) == (401, wanted)
        assert "team" not in text
    assert cluster.looks == 0, "nor is it looked at"


@pytest.mark.parametrize("path", ALL)
def test_while_the_api_server_is_away_nobody_gets_in_with_a_token(
    endpoint: PageEndpoint, reviews: ScriptedReviews, path: str
) -> None:
    reviews.is_down = True
    assert ask(endpoint, path, "of-admin") == (503, f"{NO_ANSWER}\n")
    reviews.is_down = False
    assert ask(endpoint, path, "of-admin")[0] == 200, "the failure is not kept"


def test_who_may_list_all_pods_sees_all_names(endpoint: PageEndpoint) -> None:
    texts = {path: ask(endpoint, path, "of-admin")[1] for path in ALL}
    assert "other-waiter" in texts["/api/waiting"]
    assert "other-waiter" in texts["/api/search?q=wait"]
    assert json.loads(texts["/api/fleet"])["teams"] == ["secret", "team"]
    assert [team["namespace"] for team in json.loads(texts["/api/teams"])["teams"]] == ["secret", "team"]
    assert "pod-of-theirs" in texts["/api/node?name=n"]
    assert "secret/theirs" in texts["/graph"]
    assert json.loads(texts["/api/summary"])["reader"] == "admin"


def test_who_may_list_the_pods_of_one_namespace_sees_its_names_and_counts_of_others(endpoint: PageEndpoint) -> None:
    texts = {path: ask(endpoint, path, "of-dev") for path in ALL}
    assert {status for status, _ in texts.values()} == {200}
    for _, text in texts.values():
        assert "secret" not in text
        assert "theirs" not in text
    waiting = json.loads(texts["/api/waiting"][1])["waiting"]
    assert [group["name"] for group in waiting["groups"]] == ["waiter"]
    assert (waiting["total"], waiting["hidden"]) == (2, 1)
    fleet = json.loads(texts["/api/fleet"][1])
    assert (fleet["teams"], fleet["nodes"][0][3:5]) == (["team"], ["##..", [0, -2, -1, -1]])
    assert json.loads(texts["/api/teams"][1])["hidden"] == {"namespaces": 1, "gpus": 1}
    assert json.loads(texts["/api/search?q=wait"][1])["hits"] == [
        {"kind": "pod", "name": "waiter", "open": "pod/team/waiter", "note": "waits, team"}
    ]
    assert ask(endpoint, "/api/team?namespace=secret", "of-dev")[0] == 404
    assert json.loads(texts["/usage"][1])["hidden"] == {"pods": 1, "devices": 1}
    assert ask(endpoint, "/api/pod?namespace=secret&name=p", "of-dev")[0] == 404


def test_a_reader_finds_their_team_that_only_has_a_quota(endpoint: PageEndpoint, cluster: PageCluster) -> None:
    quota = {f"{DRIVER}/quota": '{"gpus": 4}'}
    teams = [Namespace(ObjectMeta(name, annotations=quota)) for name in ("team", "team-of-theirs")]
    cluster.watched = Watched((node("n"),), (pool_slice("n", FOUR),), (), (), namespaces=tuple(teams))
    hits = json.loads(ask(endpoint, "/api/search?q=team", "of-dev")[1])["hits"]
    assert [hit["open"] for hit in hits] == ["team/team"]


@pytest.mark.parametrize("namespaces", [90, 400])
def test_whose_pod_waits_behind_many_of_others_sees_it(
    endpoint: PageEndpoint, cluster: PageCluster, namespaces: int
) -> None:
    others = [WaitingPod(f"n{number % namespaces}", f"p{number}", "unsatisfiable", None, 1.0) for number in range(400)]
    cluster.watched = Watched((), (), (), (*others, WaitingPod("team", "mine", "unsatisfiable", None, 2.0)))
    looks = []
    for _ in range(2 + namespaces // REVIEWS_AN_ANSWER):
        waiting = json.loads(ask(endpoint, "/api/waiting", "of-dev")[1])
        looks.append((waiting["unasked"] == 0, [group["name"] for group in waiting["waiting"]["groups"]]))
    assert looks[0] == (False, [])
    assert looks[-1] == (True, ["mine"])


def test_who_may_list_no_pods_sees_counts_alone(endpoint: PageEndpoint) -> None:
    for path in ALL:
        status, text = ask(endpoint, path, "of-guest")
        assert status == (404 if path in OF_ONE_TEAM else 200)
        text = text.replace("there is no such team", "").replace('"teams"', "")
        assert not [name for name in ("ours", "theirs", "waiter", "team", "secret") if name in text]
    assert json.loads(ask(endpoint, "/api/waiting", "of-guest")[1])["waiting"]["hidden"] == 2


def test_a_fleet_that_was_read_is_followed_by_the_rows_that_changed(
    endpoint: PageEndpoint, cluster: PageCluster
) -> None:
    whole = json.loads(ask(endpoint, "/api/fleet", "of-admin")[1])
    assert [row[0] for row in whole["nodes"]] == ["n"]
    same = json.loads(ask(endpoint, f"/api/fleet?since={whole['number']}", "of-admin")[1])
    assert (same["rows"], "nodes" in same) == ({}, False)
    for since in ("0", "-1", "999999999", "1e9", "%c2%b2", "9" * 500, "x"):
        assert "nodes" in json.loads(ask(endpoint, f"/api/fleet?since={since}", "of-admin")[1]), since


def test_names_stay_hidden_while_the_right_to_see_them_cannot_be_checked(
    endpoint: PageEndpoint, reviews: ScriptedReviews
) -> None:
    assert ask(endpoint, "/api/summary", "of-dev")[0] == 200
    reviews.is_down = True
    status, text = ask(endpoint, "/api/node?name=n", "of-dev")
    assert status == 200
    assert "team" not in text
    reviews.is_down = False
    assert "pod-of-ours" in ask(endpoint, "/api/node?name=n", "of-dev")[1]


def test_a_password_of_the_web_config_file_opens_everything(
    cluster: PageCluster, reviews: ScriptedReviews, with_password: str
) -> None:
    with serving_page(cluster, reviews, web_config_file=with_password) as endpoint:
        for user, password, wanted in (("admin", "right", 200), ("admin", "wrong", 401), ("nobody", "right", 401)):
            status, text, answered = get(
                endpoint.port, "/api/node?name=n", user=user, password=password, timeout_s=20.0
            )
            assert status == wanted
            assert ("pod-of-theirs" in text) == (wanted == 200)
            assert answered["WWW-Authenticate"] == ("Basic" if wanted == 401 else None)
        assert ask(endpoint, "/api/summary", "of-dev")[0] == 200, "a token does it too"
        assert ask(endpoint, "/api/summary")[0] == 401


def test_an_open_page_is_for_this_machine_alone(cluster: PageCluster, reviews: ScriptedReviews) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "10.1.2.3:80", "dracaena.example.com:80", ":0"):
        with pytest.raises(BadInputError, match="loopback address only"):
            PageEndpoint(address, cluster.source(), reviews, SystemClock(), is_open=True)
    with serving_page(cluster, reviews, is_open=True) as endpoint:
        assert ask(endpoint, "/api/summary")[0] == 200
        for host in (f"localhost:{endpoint.port}", "127.0.0.1", "[::1]:80"):
            assert get(endpoint.port, "/api/summary", headers={"Host": host})[0] == 200
        for host in ("evil.example.com", "127.0.0.1.evil.example.com", "", "[::2]:80"):
            assert get(endpoint.port, "/", headers={"Host": host})[0] == 421
        assert not reviews.identified


class _Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_files_need_no_right_name_no_other_host_and_hold_nothing_in_line(endpoint: PageEndpoint) -> None:
    for path in FILES:
        status, text, headers = get(endpoint.port, path)
        assert (status, headers["Content-Security-Policy"]) == (200, CONTENT_POLICY)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
    parts = _Parts()
    parts.feed(get(endpoint.port, "/")[1])
    for tag, attributes in parts.found:
        assert tag != "style"
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("/", "#")), attributes
        assert tag != "script" or attributes["src"] in FILES


def test_a_replica_that_does_not_lead_says_that_it_does_not_know_who_waits(
    endpoint: PageEndpoint, cluster: PageCluster
) -> None:
    watched = cluster.watched
    cluster.watched = Watched(watched.nodes, watched.slices, watched.claims, None)
    for token in ("of-admin", "of-guest"):
        status, text = ask(endpoint, "/api/summary", token)
        assert (status, json.loads(text)["waiting"]) == (200, None)
    status, text = ask(endpoint, "/api/pod?namespace=team&name=pod-of-ours", "of-admin")
    assert (status, json.loads(text)["waiting"]) == (200, None)


@pytest.mark.parametrize(
    "path", ["/api/node", "/api/node?name=other", "/graph?node=other", f"/api/node?name={'x' * 4000}"]
)
def test_what_is_not_there_is_not_found(endpoint: PageEndpoint, path: str) -> None:
    assert ask(endpoint, path, "of-admin")[0] == 404


def test_strange_requests_get_an_answer(endpoint: PageEndpoint) -> None:
    assert ask(endpoint, "/api/fleet?" + "&".join(f"f{number}=1" for number in range(99)), "of-admin")[0] == 400
    assert ask(endpoint, "/api/search?q=%00%ff%zz%e2%80%ae", "of-admin")[0] == 200
    assert ask(endpoint, "/metrics", "of-admin")[0] == 404
    assert ask(endpoint, "/../page.css", "of-admin")[0] == 404


def test_fields_that_a_path_does_not_read_make_no_other_question(
    endpoint: PageEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def note(key: Any, reply: Reply) -> None:
        asked.append(key)
        reply(text_answer(200, "ok"))

    for page in endpoint._pages.values():
        monkeypatch.setattr(page, "ask", note)
    for query in ("", "?a=1", "?a=2&a=3", "?after=", "?search=&unread=%00"):
        assert ask(endpoint, f"/usage{query}", "of-admin")[0] == 200
    assert len(set(asked)) == 1
    for query in ("?after=a", "?after=a&x=1", "?after=b"):
        assert ask(endpoint, f"/usage{query}", "of-admin")[0] == 200
    assert len(set(asked)) == 3


def exporter_of(address: str) -> bytes:
    uses = {"main": [{"gpu": 0, "processes": 1, "memory_bytes": 1 << 30, "sm_ratio": 0.4}]}
    pods = [{"namespace": namespace, "pod": f"pod-of-{namespace}", "containers": uses} for namespace in NAMESPACES]
    return json.dumps({"node": address, "driver": True, "pods": pods}).encode()


NAMESPACES = ("secret", "team")


def test_what_gpus_do_is_reported_with_the_names_that_one_may_see(
    cluster: PageCluster, reviews: ScriptedReviews
) -> None:
    cluster.use = NodeUse(lambda node: node, exporter_of, SystemClock())
    with serving_page(cluster, reviews) as endpoint:
        told = json.loads(ask(endpoint, "/api/use?node=n", "of-dev")[1])
        assert [use.get("pod") for use in told["uses"]] == [None, "pod-of-team"]
        assert [use["smPercent"] for use in told["uses"]] == [40, 40]
        text = ask(endpoint, "/api/use?node=n", "of-guest")[1]
        assert not [name for name in NAMESPACES if name in text]
        assert ask(endpoint, "/api/use?node=n")[0] == 401
        assert ask(endpoint, "/api/use?node=of-another-cluster", "of-admin")[0] == 404
        assert json.loads(ask(endpoint, "/api/summary", "of-dev")[1])["use"] is True


def test_an_exporter_that_hangs_or_is_missing_holds_up_nothing_else(
    cluster: PageCluster, reviews: ScriptedReviews
) -> None:
    asked, over = threading.Event(), threading.Event()

    def hang(_address: str) -> bytes:
        asked.set()
        over.wait(20)
        raise TemporaryError("it hangs")

    cluster.use = NodeUse(lambda node: node, hang, SystemClock())
    with serving_page(cluster, reviews) as endpoint:
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(ask(endpoint, "/api/use?node=n", "of-admin")[1]))
        asking.start()
        assert asked.wait(20)
        for path in ALL:
            assert ask(endpoint, path, "of-admin")[0] == 200
        over.set()
        asking.join()
        told = json.loads(found[0])
        assert (told["trouble"], told["uses"]) == ("no figures from node n: it hangs", [])


def test_where_no_exporter_is_set_none_is_asked(endpoint: PageEndpoint) -> None:
    assert json.loads(ask(endpoint, "/api/summary", "of-admin")[1])["use"] is False
    assert ask(endpoint, "/api/use?node=n", "of-admin")[0] == 404


def test_markup_in_a_name_is_text_in_json_that_no_browser_takes_for_a_page(
    endpoint: PageEndpoint, cluster: PageCluster
) -> None:
    cluster.watched = Watched((), (), (), (WaitingPod("team", MARKUP, "unsatisfiable", Reasons(f"why {MARKUP}"), 1.0),))
    status, text, headers = get(endpoint.port, "/api/waiting", headers={"Authorization": "Bearer of-dev"})
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(text)["waiting"]["groups"][0]["first"] == [MARKUP]


def events(endpoint: PageEndpoint, source: str = HONEST, token: str = "of-admin") -> socket.socket:
    client = connect(endpoint.port, source)
    client.sendall(f"GET /api/events HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    client.settimeout(20.0)
    return client


def read_until(client: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        more = client.recv(1 << 12)
        assert more, data
        data += more
    return data


def test_who_follows_learns_of_a_change_and_of_nothing_else(endpoint: PageEndpoint, cluster: PageCluster) -> None:
    with events(endpoint) as client:
        head = read_until(client, b"data: 1\n\n")
        assert b"Content-Type: text/event-stream" in head
        looks = cluster.looks
        cluster.watched = Watched((node("n"),), (pool_slice("n", FOUR),), ())
        assert read_until(client, b"data: 2\n\n").startswith(b"event: change\n")
        assert cluster.looks > looks
    assert json.loads(ask(endpoint, "/api/summary", "of-admin")[1])["number"] == 2


def test_a_thousand_connections_that_read_nothing_shut_nobody_out(endpoint: PageEndpoint) -> None:
    with contextlib.ExitStack() as held:
        crowd = []
        for number in range(1_000):
            client = held.enter_context(connect(endpoint.port, HOSTILE))
            crowd.append(client)
            path = ("/api/events", "/api/summary", "/graph", "/")[number % 4]
            with contextlib.suppress(OSError):
                client.sendall(f"GET {path} HTTP/1.1\r\nAuthorization: Bearer of-admin\r\n\r\n".encode())
        status, _ = ask(endpoint, "/api/summary", "of-admin", source=HONEST)
        assert status == 200
        assert len(endpoint._server._connections) <= 128
        assert is_closed(crowd[0])


def test_followers_are_limited_and_the_others_learn_to_ask(endpoint: PageEndpoint) -> None:
    assert ask(endpoint, "/api/fleet", "of-admin")[0] == 200
    with contextlib.ExitStack() as held:
        for _ in range(MOST_FOLLOWERS):
            read_until(held.enter_context(events(endpoint)), b"event: change\n")
        with events(endpoint) as one_too_many:
            assert read_until(one_too_many, b"intervals\n").startswith(b"HTTP/1.1 503 ")
