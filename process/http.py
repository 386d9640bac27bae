"""One small HTTP endpoint per program: /healthz, /readyz and /metrics.

The health pages are for kubelet, whose probes send no password and no certificate and do not check ours: everybody gets
them, over HTTP and, if a web-config file names a certificate, over HTTPS on the same port. Everything else is protected
as that file says.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from dracaena.api.errors import BadInputError
from dracaena.process.basic_auth import BasicAuth
from dracaena.process.clock import Clock, SystemClock
from dracaena.process.http_message import HttpAnswer, HttpRequest, text_answer
from dracaena.process.http_pages import Page, Reply
from dracaena.process.http_server import Client, HttpServer, listen
from dracaena.process.web_config import WebConfig, names_of
from dracaena.process.web_config_file import WebConfigFile

_FORMS = re.compile(
    r"(text/plain|application/openmetrics-text); version=(0\.0\.4|1\.0\.0); charset=utf-8"
    r"(; escaping=(allow-utf-8|underscores|dots|values))?"
)
"""Content types of metrics that we offer: a client may ask for any version, and each form is computed separately."""


class HttpEndpoint:
    """Serves health and metrics of this process on its own threads.

    `address` is `host:port`, port 0 takes a free one. `ready` returns None, or in words what is still missing: /readyz
    answers 200 or 503 with it; 200 comes with what `state` returns. `alive` does the same for /healthz: None as long as
    a restart would not help. Each is called by one thread, which it may keep waiting. `web_config_file` is a Prometheus
    web-config file, read again when it changes; empty: nothing is protected. `pages` are further ones by path, or
    /metrics in another form, protected as /metrics is. Raises BadInputError for an address or a file that cannot be
    used.
    """

    def __init__(
        self,
        address: str,
        ready: Callable[[], str | None],
        registry: CollectorRegistry = REGISTRY,
        *,
        state: Callable[[], str] = lambda: "ok",
        alive: Callable[[], str | None] = lambda: None,
        web_config_file: str = "",
        pages: Mapping[str, Callable[[], HttpAnswer]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._web = WebConfigFile(web_config_file, clock)
        listener = listen_at(address)
        self._port = int(listener.getsockname()[1])
        self._health = {
            "/healthz": Page[str]("healthz", lambda _: _health_answer(alive(), "not alive", lambda: "ok"), clock),
            "/readyz": Page[str]("readyz", lambda _: _health_answer(ready(), "not ready", state), clock),
        }
        self._pages = {
            "/metrics": Page[str]("metrics", lambda accept: _metrics_answer(registry, accept), clock),
            **{path: _page(path, compute, clock) for path, compute in (pages or {}).items()},
        }
        self._auth = BasicAuth(clock)
        self._server = HttpServer(
            listener,
            self._handle,
            clock,
            tls=lambda: self._web.current().context,
            headers=lambda: self._web.current().headers,
        )
        self._parts: tuple[Page[str] | BasicAuth | HttpServer, ...] = (
            *self._health.values(),
            *self._pages.values(),
            self._auth,
            self._server,
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
        for part in reversed(self._parts):
            part.stop()

    def _handle(self, request: HttpRequest, client: Client, reply: Reply) -> None:
        if request.method != "GET":
            reply(text_answer(405, "only GET is answered here", ("Allow", "GET")))
        elif (page := self._health.get(request.path)) is not None:
            page.ask("", reply)
        elif (refusal := tls_refusal(self._web.current(), client)) is not None:
            reply(refusal)
        else:
            self._let_in(request, client, reply)

    def _let_in(self, request: HttpRequest, client: Client, reply: Reply) -> None:
        def decided(right: bool) -> None:  # noqa: FBT001 - the one thing that it is told
            if right:
                self._serve(request, reply)
            else:
                reply(text_answer(401, "a user and its password are needed", ("WWW-Authenticate", "Basic")))

        users = self._web.current().users
        if not users:
            self._serve(request, reply)
        elif not self._auth.check(
            users, request.headers.get("authorization", ""), client.address, wanted=lambda: reply.wanted, then=decided
        ):
            reply(text_answer(429, "too many passwords of this address are being checked", ("Retry-After", "5")))

    def _serve(self, request: HttpRequest, reply: Reply) -> None:
        page = self._pages.get(request.path)
        if page is not None:
            page.ask(_metrics_form(request.headers.get("accept", "")), reply)
        else:
            *others, last = (*self._health, *self._pages)
            reply(text_answer(404, f"{', '.join(others)} and {last} are here"))


def tls_refusal(config: WebConfig, client: Client) -> HttpAnswer | None:
    """Return the answer to a client that the TLS settings keep out; None when they let it in."""
    if config.context is None:
        return None
    if not client.secure:
        return text_answer(400, "this page is for HTTPS only")
    if config.needs_certificate and client.certificate is None:
        return text_answer(403, "a client certificate is needed")
    if config.allowed_names and not config.allowed_names & names_of(client.certificate or {}):
        return text_answer(403, "the client certificate has no name that is allowed")
    return None


def _health_answer(problem: str | None, prefix: str, state: Callable[[], str]) -> HttpAnswer:
    return text_answer(200, state()) if problem is None else text_answer(503, f"{prefix}: {problem}")


def _metrics_form(accept: str) -> str:
    """Return an Accept header that yields metrics in the form that this one asks for; there are only a few."""
    try:
        content_type = choose_encoder(accept)[1]
    except Exception:  # noqa: BLE001 - whatever a library raises on what a client wrote
        return ""
    return content_type if _FORMS.fullmatch(content_type) else ""


def _metrics_answer(registry: CollectorRegistry, accept: str) -> HttpAnswer:
    encoder, content_type = choose_encoder(accept)
    return HttpAnswer(200, encoder(registry), content_type)


def _page(path: str, compute: Callable[[], HttpAnswer], clock: Clock) -> Page[str]:
    return Page[str](path.strip("/"), lambda _: compute(), clock)


def listen_at(address: str) -> socket.socket:
    """Return a socket that listens at `host:port`; port 0: any free one. Raises BadInputError."""
    host, port = host_and_port(address)
    try:
        return listen(host, port)
    except (OSError, UnicodeError, TypeError) as error:  # the latter two: a host that IDNA cannot encode
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(f"HTTP address {address}: cannot listen: {reason}") from error


def host_and_port(address: str) -> tuple[str, int]:
    """Split host:port; an IPv6 host is in brackets, which are removed. Raises BadInputError."""
    host, colon, port = address.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise BadInputError(f"HTTP address {address!r} is not host:port with a port from 0 to 65535")
    return host.strip("[]"), int(port)
