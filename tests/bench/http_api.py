"""The API server without sockets (in_memory_api), behind the listener of the embedded one: for a controller in a
process of its own.

Objects are handed on as the bytes that they were given as. That takes next to no time, so what a controller's start
takes is the controller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from threading import Thread
from typing import Any, Final

from bench.in_memory_api import InMemoryApi
from dracaena.demo.apiserver.errors import ApiError
from dracaena.demo.apiserver.faults import Faults
from dracaena.demo.apiserver.router import AnswerStream, ApiAnswer, ApiRequest
from dracaena.demo.apiserver.server import Listener
from dracaena.kube.errors import KubeError

_OPEN: Final = b""
"""The first line of a watch: from then on the client counts on being told."""


class BytesRouter:
    """Answers requests from memory, as Router does from a storage."""

    def __init__(self, api: InMemoryApi) -> None:
        self._api = api

    def answer(self, request: ApiRequest) -> ApiAnswer | AnswerStream:
        """Answer a read, a list, a watch, or a patch of a claim; of anything else nobody reads the answer."""
        if request.query.get("watch") == "true":
            stream = self._api.stream(request.path, query=request.query, read_timeout_s=0.0)
            return AnswerStream(chain((_OPEN,), (line + b"\n" for line in stream.lines())))
        if request.method == "GET" and "limit" in request.query:
            page = self._api.read(request.path, query=request.query, most_bytes=None)
            assert page is not None
            return ApiAnswer(200, page)
        try:
            return ApiAnswer(200, self._api.request(request.method, request.path, body=request.body))
        except KubeError as error:
            raise ApiError(error.status or 500, error.reason, str(error)) from None


@contextmanager
def served(api: InMemoryApi) -> Iterator[dict[str, Any]]:
    """Serve inside the block; yield a kubeconfig."""
    listener = Listener(0, Faults())
    listener.router = BytesRouter(api)
    thread = Thread(target=listener.serve, name="http-api", daemon=True)
    thread.start()
    try:
        yield listener.kubeconfig()
    finally:
        api.expire()  # or the threads of open watches would wait for more
        listener.end()
        thread.join()
        listener.server_close()
