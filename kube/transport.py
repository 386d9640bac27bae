"""HTTP to the API server over the official client's connection: the only file that imports `kubernetes`.

Its ApiClient provides configuration (kubeconfig, in-cluster), credentials with their refresh, TLS and the urllib3 pool.
Bodies pass through as bytes: its typed models are not used.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import structlog
import urllib3
import yaml
from kubernetes import client as official
from kubernetes import config as official_config
from kubernetes.config import kube_config

from dracaena.api.errors import BadInputError
from dracaena.kube.errors import ApiUnavailableError, error_for

CONNECT_TIMEOUT_S = 5.0
"""A server on the same network answers a connect in milliseconds; 5 s leaves room for one lost SYN and its retry."""

READ_TIMEOUT_S = 15.0
"""Longest silence within one answer. Writes tell the server to give up earlier (client.WRITE_TIMEOUT_S)."""

POOL_SIZE = 32
"""Connections kept open: reflectors hold one each, writers a few."""


OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_OWN_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

_UNREADABLE = (
    official_config.ConfigException,
    yaml.YAMLError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""What the official client raises on a malformed kubeconfig: it uses values without checking their types."""


log = structlog.get_logger()


class Stream:
    """A response read line by line while the server keeps it open. One reader; close() may come from any thread."""

    def __init__(self, call: str, response: urllib3.BaseHTTPResponse) -> None:
        self._call = call
        self._response = response
        self._lock = threading.Lock()
        self._reading = False

    def lines(self) -> Iterator[bytes]:
        """Yield each line without its end, until the server ends the stream or close() is called.

        Raises ApiUnavailableError when the connection breaks or stays silent for longer than its timeout.
        """
        with self._lock:
            self._reading = True
        pending = b""
        try:
            for chunk in self._response.stream(1 << 16):
                *lines, pending = (pending + chunk).split(b"\n")
                yield from (line for line in lines if line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnavailableError(self._call, None, "", f"the stream broke: {error}") from error
        finally:
            self._response.close()

    def close(self) -> None:
        """Wake the reader, who then gives the connection up: taking it away under a read in progress breaks urllib3."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # already closed: that is what was wanted
            self._response.shutdown()
        with self._lock:
            if not self._reading:
                self._response.close()


class Transport:
    """Sends one request, returns its body or raises a KubeError. Safe from many threads."""

    def __init__(
        self, configuration: Any, *, user_agent: str, read_timeout_s: float = READ_TIMEOUT_S, impersonated: str = ""
    ) -> None:
        """All requests are sent as the user `impersonated`; empty: as ourselves."""
        self._read_timeout_s = read_timeout_s
        self._headers = {"Accept": "application/json", **({"Impersonate-User": impersonated} if impersonated else {})}
        configuration.connection_pool_maxsize = POOL_SIZE
        self._client = official.ApiClient(configuration)
        self._client.user_agent = user_agent  # a default header there wins over the request's own

    @classmethod
    def from_kubeconfig(
        cls,
        path: str | None,
        *,
        user_agent: str,
        read_timeout_s: float = READ_TIMEOUT_S,
        context: str | None = None,
        impersonated: str = "",
    ) -> Transport:
        """Connect as `path` says; without a path as the pod's ServiceAccount, else as KUBECONFIG or ~/.kube/config.

        `context` is one of the kubeconfig's, None its current one; an explicit context needs a kubeconfig.
        `read_timeout_s` is the longest silence within one answer; streams have their own. Raises BadInputError when
        none of them can be read.
        """
        configuration = official.Configuration()
        where = path or "in-cluster credentials, KUBECONFIG or ~/.kube/config"
        try:
            if path is None and context is None and _OWN_TOKEN.exists():
                official_config.load_incluster_config(client_configuration=configuration)
            else:
                files = path or kube_config.KUBE_CONFIG_DEFAULT_LOCATION
                command = _checked_exec_command(files, context)
                official_config.load_kube_config(config_file=files, context=context, client_configuration=configuration)
                if command and not configuration.api_key and not configuration.cert_file:
                    raise official_config.ConfigException(f"{command!r} gave no credentials; the log line says why")
        except _UNREADABLE as error:
            raise BadInputError(f"no connection to Kubernetes from {where}: {_one_line(error)}") from error
        if not configuration.host.startswith(("http://", "https://")):
            raise BadInputError(
                f"no connection to Kubernetes from {where}: the cluster's server is {configuration.host!r}, "
                f"expected https://HOST:PORT"
            )
        if configuration.host.startswith("https://") and not configuration.verify_ssl:
            _tell_unverified(configuration.host)
        return cls(configuration, user_agent=user_agent, read_timeout_s=read_timeout_s, impersonated=impersonated)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Return the body of a successful answer. Nothing is retried here: the caller knows what may be repeated."""
        call = f"{method} {path}"
        response = self._open(call, method, path, query, body, content_type, self._read_timeout_s, preload=True)
        if response.status >= 300:
            raise error_for(call, response.status, response.data, response.headers)
        return response.data

    def read(self, path: str, *, query: Mapping[str, str], most_bytes: int | None) -> bytes | None:
        """Return the body of a successful GET; None, and the rest unread, when it has more than most_bytes."""
        call = f"GET {path}"
        response = self._open(call, "GET", path, query, None, "application/json", self._read_timeout_s, preload=False)
        if response.status >= 300:
            raise error_for(call, response.status, _body(call, response), response.headers)
        body = bytearray()
        try:
            for chunk in response.stream(1 << 16):
                body += chunk
                if most_bytes is not None and len(body) > most_bytes:
                    response.close()
                    return None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            response.close()
            raise ApiUnavailableError(call, None, "", f"the answer broke off: {error}") from error
        response.release_conn()
        return bytes(body)

    def stream(self, path: str, *, query: Mapping[str, str], read_timeout_s: float) -> Stream:
        """Open a GET with a continuing answer. A silence longer than read_timeout_s breaks it."""
        call = f"WATCH {path}"
        response = self._open(call, "GET", path, query, None, "application/json", read_timeout_s, preload=False)
        if response.status >= 300:
            raise error_for(call, response.status, _body(call, response), response.headers)
        return Stream(call, response)

    def _open(
        self,
        call: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        read_timeout_s: float,
        *,
        preload: bool,
    ) -> urllib3.BaseHTTPResponse:
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            # Credentials are asked for on each request: the official client refreshes expired tokens there, and may
            # find a token file that is just being replaced.
            _, url, headers, _, _ = self._client.param_serialize(
                method, path, header_params=headers, auth_settings=["BearerToken"]
            )
        except (official_config.ConfigException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiUnavailableError(call, None, "", f"no credentials: {_one_line(error)}") from error
        if query:
            url += "?" + urlencode(query)
        try:
            response = self._client.rest_client.pool_manager.request(
                method,
                url,
                headers=headers,
                body=body,
                preload_content=preload,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s),
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnavailableError(call, None, "", f"no answer: {error}") from error
        return response  # type: ignore[no-any-return]  # the official client has no types


@functools.cache
def _tell_unverified(server: str) -> None:
    """Log it once, instead of urllib3's warning for each request on standard error."""
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    log.warning(
        "the API server's certificate is not verified: whoever is in between can read and change everything. Give the "
        "kubeconfig certificate-authority-data in place of insecure-skip-tls-verify",
        server=server,
    )


def _body(call: str, response: urllib3.BaseHTTPResponse) -> bytes:
    """Read the rest of an answer that was opened as a stream and turned out to be a refusal."""
    try:
        return response.data
    except (urllib3.exceptions.HTTPError, OSError) as error:
        text = f"the answer broke off: {error}"
        raise error_for(call, response.status, text.encode(), response.headers) from error
    finally:
        response.close()


def context_namespace(path: str | None, context: str | None = None) -> str:
    """Return the namespace that kubectl would use with this kubeconfig, `default` when nothing names one."""
    if path is None and context is None and OWN_NAMESPACE.exists():
        return OWN_NAMESPACE.read_text(encoding="utf-8").strip()
    try:
        every, active = official_config.list_kube_config_contexts(config_file=path)
        if context is not None:
            active = next(each for each in every if each["name"] == context)
        return str(active.get("context", {}).get("namespace") or "default")
    except (*_UNREADABLE, StopIteration):
        return "default"  # connecting reports what is wrong with it


def _checked_exec_command(files: str, context: str | None) -> str:
    """Return the command that provides the credentials of the context's user; empty when none does.

    `files` are paths as in KUBECONFIG. Refuses what the official client ignores: it would send anonymous requests,
    which the server refuses for a misleading reason. Raises one of _UNREADABLE.
    """
    paths = [Path(name).expanduser() for name in files.split(os.pathsep) if name]
    if not any(path.exists() for path in paths):
        raise official_config.ConfigException(f"no such file: {', '.join(map(str, paths))}")
    config = kube_config.KubeConfigMerger(files).config
    name = config["contexts"].get_with_name(context or config["current-context"])["context"].safe_get("user")
    if not name:
        return ""
    entry = config["users"].get_with_name(name, safe=True)
    if entry is None:
        raise official_config.ConfigException(f"the context is for user {name!r}, expected an entry of users")
    user = entry.safe_get("user") or {}
    provider = (user.get("auth-provider") or {}).get("name", "oidc")
    if provider != "oidc":
        raise official_config.ConfigException(
            f"user {name!r} has auth-provider {provider!r}, expected exec, a token or a client certificate"
        )
    return str((user.get("exec") or {}).get("command", ""))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
