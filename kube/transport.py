"""HTTP to the API server over the official client's connection: the only file that imports `kubernetes`.

Its ApiClient gives configuration (kubeconfig, in-cluster), credentials with their refresh, TLS and the urllib3
pool. Bodies pass through as bytes: its typed models are not used.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes import client as official
from kubernetes import config as official_config

from dracaena.api.errors import BadInputError
from dracaena.kube.errors import ApiUnavailableError, error_for

CONNECT_TIMEOUT_S = 5.0
"""A server on the same network answers a connect in milliseconds; 5 s leaves room for one lost SYN and its retry."""

READ_TIMEOUT_S = 15.0
"""Longest silence within one answer. Writes tell the server to give up earlier (client.WRITE_TIMEOUT_S)."""

POOL_SIZE = 32
"""Connections kept open: reflectors hold one each, writers a few."""


_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


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

    def __init__(self, configuration: Any, *, user_agent: str, read_timeout_s: float = READ_TIMEOUT_S) -> None:
        self._read_timeout_s = read_timeout_s
        configuration.connection_pool_maxsize = POOL_SIZE
        self._client = official.ApiClient(configuration)
        self._client.user_agent = user_agent  # a default header there wins over the request's own

    @classmethod
    def from_kubeconfig(cls, path: str | None, *, user_agent: str, read_timeout_s: float = READ_TIMEOUT_S) -> Transport:
        """Connect as `path` says; without a path as the pod's ServiceAccount, else as KUBECONFIG or ~/.kube/config.

        `read_timeout_s` is the longest silence within one answer; streams have their own. Raises BadInputError when
        none of them can be read.
        """
        configuration = official.Configuration()
        try:
            if path is None and Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists():
                official_config.load_incluster_config(client_configuration=configuration)
            else:
                official_config.load_kube_config(config_file=path, client_configuration=configuration)
        except (official_config.ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError) as error:
            where = path or "in-cluster credentials, KUBECONFIG or ~/.kube/config"
            raise BadInputError(f"no connection to Kubernetes from {where}: {' '.join(str(error).split())}") from error
        return cls(configuration, user_agent=user_agent, read_timeout_s=read_timeout_s)

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
            raise error_for(call, response.status, response.data)
        return response.data

    def stream(self, path: str, *, query: Mapping[str, str], read_timeout_s: float) -> Stream:
        """Open a GET whose answer goes on. A silence longer than read_timeout_s breaks it."""
        call = f"WATCH {path}"
        response = self._open(call, "GET", path, query, None, "application/json", read_timeout_s, preload=False)
        if response.status >= 300:
            raise error_for(call, response.status, _body(call, response))
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
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            # Credentials are asked for on each request: the official client refreshes expired tokens there, and may
            # find a token file that is just being replaced.
            _, url, headers, _, _ = self._client.param_serialize(
                method, path, header_params=headers, auth_settings=["BearerToken"]
            )
        except (official_config.ConfigException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiUnavailableError(call, None, "", f"no credentials: {' '.join(str(error).split())}") from error
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


def _body(call: str, response: urllib3.BaseHTTPResponse) -> bytes:
    """Read the rest of an answer that was opened as a stream and turned out to be a refusal."""
    try:
        return response.data
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiUnavailableError(call, response.status, "", f"the answer broke off: {error}") from error
    finally:
        response.close()


def context_namespace(path: str | None) -> str:
    """Return the namespace that kubectl would use with this kubeconfig, `default` when nothing names one."""
    if path is None and _OWN_NAMESPACE.exists():
        return _OWN_NAMESPACE.read_text(encoding="utf-8").strip()
    try:
        _, active = official_config.list_kube_config_contexts(config_file=path)
    except (official_config.ConfigException, yaml.YAMLError, OSError, ValueError, KeyError, TypeError):
        return "default"  # connecting tells what is wrong with it
    return str(active.get("context", {}).get("namespace") or "default")
