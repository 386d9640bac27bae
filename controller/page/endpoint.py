"""The page over HTTP, on a port of its own: its readers take no connections away from kubelet's probes.

Only GET is served, and no request changes anything. The page's files contain nothing about the cluster and are open to
all; everything else is for readers that Access lets in.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qsl

from dracaena.api.errors import BadInputError
from dracaena.api.node_status import PublishedNode
from dracaena.api.objects import Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.page.access import Access, Reviews, Seen, Viewer
from dracaena.controller.page.followers import Followers
from dracaena.controller.page.node_use import NodeUse
from dracaena.controller.page.snapshots import LatestSnapshot, Numbered, Snapshots
from dracaena.controller.page.turns import worked_out
from dracaena.controller.views.details import MOST_TREES, graph_text, node_view, pod_view
from dracaena.controller.views.fleet import fleet, namespaces
from dracaena.controller.views.node_use import no_use_view, use_view
from dracaena.controller.views.search import search_in_turns
from dracaena.controller.views.snapshot import ClusterSnapshot
from dracaena.controller.views.summary import summary
from dracaena.controller.views.teams import team, team_names, teams
from dracaena.controller.views.usage import namespaces_in_turns, usage_in_turns
from dracaena.controller.views.waiting import waiting
from dracaena.process.clock import Clock
from dracaena.process.http import host_and_port, listen_at, tls_refusal
from dracaena.process.http_message import HttpAnswer, HttpRequest, text_answer
from dracaena.process.http_pages import Page, Reply
from dracaena.process.http_server import Client, HttpServer
from dracaena.process.web_config_file import WebConfigFile

FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("page", "address", "answers", "drawer", "elements", "fleet", "views")
    },
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Path → file in this package, and its type."""

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing from other hosts, nothing inline, not in a frame."""

SECURITY_HEADERS: Final = (
    ("Content-Security-Policy", CONTENT_POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""They also forbid caching."""

MOST_FIELDS: Final = 8
"""Of a query; two at most are read."""

LONGEST_REST_S: Final = 1.0
"""Longest rest after an answer: /usage takes a fifth of a second at 40,000 claims, besides the rests between its turns,
and a flood of such requests must cost no more than a fifth of a core."""

MOST_DIGITS: Final = 12
"""Of the number of a snapshot in a request."""

JSON: Final = "application/json"

LOOPBACK_NAMES: Final = frozenset(("localhost", "ip6-localhost"))


@dataclass(frozen=True, slots=True)
class PageSource:
    """Where the page gets what it shows. Used from any thread, without waiting for a decision."""

    driver: str
    latest: LatestSnapshot
    pod: Callable[[str], Pod | None]
    claim: Callable[[str], ResourceClaim | None]
    state: Callable[[], str]
    """Whether this replica leads, in words."""
    trouble: Callable[[], str | None]
    """Why what is shown may be old."""
    use: NodeUse | None = None
    """What exporters report; None: none is asked. It may block, so a thread of its own asks it."""


@dataclass(frozen=True, slots=True)
class _Key:
    """Who asks for what: equal keys share one answer."""

    viewer: Viewer
    path: str
    fields: tuple[tuple[str, str], ...]
    """Only the fields that the path reads: otherwise the same request in other words would be answered again."""

    def value(self, name: str) -> str:
        return dict(self.fields).get(name, "")


@dataclass(frozen=True, slots=True)
class _View:
    """What is served under one path."""

    answer: Callable[[_Key, Numbered], HttpAnswer]
    fields: tuple[str, ...] = ()
    """The fields of the query that it reads."""


class PageEndpoint:
    """Serves the page. start() once, then stop() once.

    `address` is `host:port`. `is_open`: without password or token, which only addresses of this machine may be. Raises
    BadInputError for an address or a web-config file that cannot be used.
    """

    def __init__(
        self,
        address: str,
        source: PageSource,
        reviews: Reviews,
        clock: Clock,
        *,
        web_config_file: str = "",
        is_open: bool = False,
    ) -> None:
        _check_reach(address, is_open=is_open)
        self._source, self._clock, self._is_open = source, clock, is_open
        self._files, self._stopping = _files(), threading.Event()
        self._web = WebConfigFile(web_config_file, clock)
        self._access = Access(reviews, clock, lambda: self._web.current().users, is_open=is_open)
        self._followers = Followers()
        self._snapshots = self._followed_snapshots(clock)
        # Four threads: a request for much text, or for a node whose exporter hangs, holds up neither sums nor nodes.
        self._pages = {
            "/api/summary": Page[_Key]("page-summary", self._answer, clock, longest_rest_s=LONGEST_REST_S),
            "/api/fleet": Page[_Key]("page-fleet", self._answer, clock, longest_rest_s=LONGEST_REST_S),
            "/api/use": Page[_Key]("page-use", self._answer, clock),
            "": Page[_Key]("page-details", self._answer, clock, longest_rest_s=LONGEST_REST_S),
        }
        self._views = self._all_views()
        listener = listen_at(address)
        self._port = int(listener.getsockname()[1])
        self._server = self._listen(listener, clock)
        self._parts: tuple[Access | Snapshots | Page[_Key] | HttpServer, ...] = (
            self._access,
            self._snapshots,
            *self._pages.values(),
            self._server,
        )

    def _all_views(self) -> dict[str, _View]:
        return {
            "/api/summary": _View(self._summary),
            "/api/fleet": _View(self._fleet, ("since",)),
            "/api/waiting": _View(self._waiting),
            "/api/teams": _View(self._teams),
            "/api/team": _View(self._team, ("namespace",)),
            "/api/search": _View(self._search, ("q",)),
            "/api/node": _View(self._node, ("name",)),
            "/api/use": _View(self._use, ("node",)),
            "/api/pod": _View(self._pod, ("namespace", "name")),
            "/graph": _View(self._graph, ("node",)),
            "/usage": _View(self._usage, ("after",)),
        }

    def _followed_snapshots(self, clock: Clock) -> Snapshots:
        return Snapshots(
            self._source.latest,
            clock,
            followed=self._followers.any,
            tell=self._followers.tell,
        )

    def _listen(self, listener: socket.socket, clock: Clock) -> HttpServer:
        return HttpServer(
            listener,
            self._handle,
            clock,
            tls=lambda: self._web.current().context,
            headers=lambda: (*SECURITY_HEADERS, *self._web.current().headers),
        )

    @property
    def port(self) -> int:
        """The port that is served."""
        return self._port

    def start(self) -> None:
        """Serve until stop()."""
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        """Close the port and end the threads."""
        self._stopping.set()
        for part in reversed(self._parts):
            part.stop()

    def _handle(self, request: HttpRequest, client: Client, reply: Reply) -> None:
        if request.method != "GET":
            reply(text_answer(405, "only GET is answered here", ("Allow", "GET")))
        elif self._is_open and not _is_loopback(_host_of(request)):
            # Otherwise a site that a user visits could point its own name here, and read what is served (DNS
            # rebinding).
            reply(text_answer(421, "this page is served under names and addresses of this machine only"))
        elif (refusal := tls_refusal(self._web.current(), client)) is not None:
            reply(refusal)
        elif (file := self._files.get(request.path)) is not None:
            reply(file)
        elif request.path != "/api/events" and request.path not in self._views:
            reply(text_answer(404, f"{', '.join((*FILES, '/api/events', *self._views))} are here"))
        else:
            self._let_in(request, client, reply)

    def _let_in(self, request: HttpRequest, client: Client, reply: Reply) -> None:
        try:
            query = dict(parse_qsl(request.query, max_num_fields=MOST_FIELDS))
        except ValueError:
            reply(text_answer(400, f"a request has at most {MOST_FIELDS} fields here"))
            return

        def decided(who: Viewer | HttpAnswer) -> None:
            if isinstance(who, HttpAnswer):
                reply(who)
            elif request.path == "/api/events":
                self._snapshots.want()
                self._followers.add(reply, self._snapshots.number)
            else:
                page = self._pages.get(request.path, self._pages[""])
                read = self._views[request.path].fields
                fields = tuple((name, query[name]) for name in read if name in query)
                page.ask(_Key(who, request.path, fields), reply)

        self._access.check(request, client.address, wanted=lambda: reply.wanted, then=decided)

    def _answer(self, key: _Key) -> HttpAnswer:
        newest = self._snapshots.newest()
        if newest is None:
            return text_answer(503, "the cluster has not been seen yet", ("Retry-After", "2"))
        return self._views[key.path].answer(key, newest)

    def _seen(self, key: _Key, namespaces: Iterable[str]) -> Seen:
        return self._access.seen(key.viewer, namespaces)

    def _summary(self, key: _Key, newest: Numbered) -> HttpAnswer:
        identity = key.viewer.identity
        about = {
            "number": newest.number,
            "state": self._source.state(),
            "trouble": self._source.trouble(),
            "use": self._source.use is not None,
            "reader": None if identity is None else identity.user,
        }
        return _json({**about, **summary(newest.snapshot, self._clock.monotonic())})

    def _fleet(self, key: _Key, newest: Numbered) -> HttpAnswer:
        seen = self._seen(key, namespaces(newest.snapshot.lines))
        about = {"number": newest.number, "unasked": seen.unasked}
        since = key.value("since")
        number = int(since) if since.isascii() and since.isdigit() and len(since) < MOST_DIGITS else 0
        # A number from another process, or from another replica, is none of ours.
        known = number if number <= newest.number else 0
        return HttpAnswer(200, fleet(newest.snapshot, seen.sight, newest.changes, about, known), JSON)

    def _waiting(self, key: _Key, newest: Numbered) -> HttpAnswer:
        pods = newest.snapshot.waiting
        if pods is None:
            return _json({"waiting": None, "unasked": 0})
        seen = self._seen(key, (pod.namespace for pod in pods))
        now_s = self._clock.monotonic()
        found = waiting(pods, seen.sight, now_s, self._source.pod, self._source.claim)
        return _json({"waiting": found, "unasked": seen.unasked})

    def _teams(self, key: _Key, newest: Numbered) -> HttpAnswer:
        seen = self._seen(key, team_names(newest.snapshot))
        return _json({**teams(newest.snapshot, seen.sight), "unasked": seen.unasked})

    def _team(self, key: _Key, newest: Numbered) -> HttpAnswer:
        namespace = key.value("namespace")
        may_see = self._seen(key, [namespace]).sight(namespace)
        found = team(newest.snapshot, namespace, self._source.pod) if may_see else None
        return text_answer(404, "there is no such team, or you may not see it") if found is None else _json(found)

    def _search(self, key: _Key, newest: Numbered) -> HttpAnswer:
        snapshot = newest.snapshot
        waits = {pod.namespace for pod in snapshot.waiting or ()}
        seen = self._seen(key, sorted({*self._namespaces(snapshot), *team_names(snapshot), *waits}))
        turns = search_in_turns(snapshot, seen.sight, key.value("q"), {"unasked": seen.unasked})
        body = worked_out(turns, self._clock, self._stopping)
        return text_answer(503, "the controller is ending") if body is None else HttpAnswer(200, body, JSON)

    def _node(self, key: _Key, newest: Numbered) -> HttpAnswer:
        name = key.value("name")
        node, line = newest.snapshot.node(name), newest.snapshot.line(name)
        if node is None or line is None:
            return text_answer(404, f"no such node publishes devices of {self._source.driver}")
        seen = self._seen(key, _held(node))
        return _json({**node_view(node, line, seen.sight), "unasked": seen.unasked})

    def _use(self, key: _Key, newest: Numbered) -> HttpAnswer:
        name = key.value("node")
        if self._source.use is None or name not in newest.snapshot.pages:
            return text_answer(404, "no exporter is asked about such a node")
        answer = self._source.use.of(name)
        if isinstance(answer, str):
            return _json({**no_use_view(name, answer), "unasked": 0})
        seen = self._seen(key, sorted({use.namespace for use in answer.uses}))
        return _json({**use_view(name, answer, seen.sight), "unasked": seen.unasked})

    def _pod(self, key: _Key, newest: Numbered) -> HttpAnswer:
        namespace, name = key.value("namespace"), key.value("name")
        pod = self._source.pod(f"{namespace}/{name}") if self._seen(key, [namespace]).sight(namespace) else None
        if pod is None:
            return text_answer(404, "there is no such pod, or you may not see it")
        named = pod_claims(pod)
        claims = {one.alias: None if one.key is None else self._source.claim(one.key) for one in named}
        waits = (one for one in newest.snapshot.waiting or () if (one.namespace, one.name) == (namespace, name))
        return _json(pod_view(self._source.driver, pod, claims, next(waits, None), self._clock.monotonic()))

    def _graph(self, key: _Key, newest: Numbered) -> HttpAnswer:
        snapshot, name = newest.snapshot, key.value("node")
        node = snapshot.node(name) if name else None
        # Lines without trees contain no names.
        named = _held(node) if node else () if len(snapshot.lines) > MOST_TREES else self._namespaces(snapshot)
        seen = self._seen(key, named)
        text = graph_text(snapshot, seen.sight, node=name)
        if text is None:
            return text_answer(404, f"no such node publishes devices of {self._source.driver}")
        rest = f"{seen.unasked} namespaces are not known yet: ask again\n" if seen.unasked else ""
        return HttpAnswer(200, (text + rest).encode("utf-8", "replace"))

    def _usage(self, key: _Key, newest: Numbered) -> HttpAnswer:
        snapshot, after = newest.snapshot, key.value("after")
        seen = self._seen(key, self._namespaces(snapshot))
        more = {"unasked": seen.unasked}
        body = worked_out(usage_in_turns(snapshot, seen.sight, after=after, more=more), self._clock, self._stopping)
        return text_answer(503, "the controller is ending") if body is None else HttpAnswer(200, body, JSON)

    def _namespaces(self, snapshot: ClusterSnapshot) -> Sequence[str]:
        return sorted(worked_out(namespaces_in_turns(snapshot), self._clock, self._stopping) or ())


def _check_reach(address: str, *, is_open: bool) -> None:
    if is_open and not _is_loopback(host_and_port(address)[0]):
        raise BadInputError(
            f"page address {address}: a page that asks for no password may listen at a loopback address only, "
            "for example 127.0.0.1:8081"
        )


def _files() -> dict[str, HttpAnswer]:
    folder = resources.files(__package__) / "files"
    return {path: HttpAnswer(200, (folder / name).read_bytes(), kind) for path, (name, kind) in FILES.items()}


def _held(node: PublishedNode) -> Sequence[str]:
    return sorted({holder.claim.partition("/")[0] for holder in node.holders})


def _json(document: Mapping[str, Any]) -> HttpAnswer:
    return HttpAnswer(200, json.dumps(document).encode() + b"\n", JSON)


def _host_of(request: HttpRequest) -> str:
    host = request.headers.get("host", "")
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
