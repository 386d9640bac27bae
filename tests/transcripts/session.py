"""What a scenario is given: it sends requests, and keeps what was sent and what came back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Self

from transcripts.connection import Answer, Connection, Ground, Stream, target
from transcripts.values import marked

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"

SHOWN_HEADERS = ("Warning", "Retry-After", "Allow")
"""Headers of an answer that clients act on, beside Content-Type where it is not JSON."""

Step = dict[str, Any]

AT = "at"
"""Key of a step: when its answer was there. Masks need it; transcripts do not show it."""


def _generate_name(body: Any) -> str:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    return str((metadata or {}).get("generateName", ""))


class WatchStream:
    """One watch of a scenario."""

    def __init__(self, name: str, stream: Stream, steps: list[Step]) -> None:
        self._name = name
        self._stream = stream
        self._steps = steps
        self._lines = stream.lines()

    def take(self, count: int, title: str) -> list[Any]:
        """Wait for so many events and record them."""
        events = list(islice(self._events(), count))
        self._steps.append({"step": title, AT: datetime.now(UTC), "watch": self._name, "events": events})
        return events

    def rest(self, title: str) -> list[Any]:
        """Wait for the server to end the watch and record what comes until then."""
        events = list(self._events())
        self._steps.append({"step": title, AT: datetime.now(UTC), "watch": self._name, "events to the end": events})
        return events

    def close(self) -> None:
        """Leave."""
        self._stream.close()

    def _events(self) -> Iterator[Any]:
        for line in self._lines:
            yield {"type": line["type"], "object": marked(line["object"], is_bookmark=line["type"] == "BOOKMARK")}


class Session:
    """One run of one scenario. `steps` is the transcript, not masked yet.

    Answers come back with the strings that the server has chosen marked (`values.py`), so that a later request which
    carries one is masked alike. Queries are given as a mapping for the same reason.
    """

    def __init__(self, ground: Ground) -> None:
        self.steps: list[Step] = []
        self.started = datetime.now(UTC)
        self.ground = ground
        self._ends = ExitStack()
        self._connection = Connection(ground)
        self._ends.callback(self._connection.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ends.close()

    def send(
        self,
        title: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        form: str = JSON,
        query: Mapping[str, Any] | None = None,
        accept: str = JSON,
    ) -> Any:
        """Send one request, record it, and return the body of the answer.

        `body` is sent as it is when it is a str, else as JSON.
        """
        query = query or {}
        headers = {"Accept": accept} | ({"Content-Type": form} if body is not None else {})
        data = None if body is None else body if isinstance(body, str) else json.dumps(body)
        answer = self._connection.send(
            method, target(path, query), data.encode() if data is not None else None, headers
        )
        document = marked(answer.body, base=_generate_name(body))
        step: Step = {
            "step": title,
            AT: datetime.now(UTC),
            "request": {"method": method, "path": path, "query": dict(query)},
        }
        if accept != JSON:
            step["accept"] = accept
        if body is not None:
            step |= ({"form": form} if form != JSON else {}) | {"body": body}
        step |= {"status": answer.status} | self._shown_headers(answer)
        self.steps.append(step | {"answer": document})
        return document

    def get(self, title: str, path: str, **query: Any) -> Any:
        """GET, with `query` as the query."""
        return self.send(title, "GET", path, query=query)

    def create(self, title: str, path: str, body: Any, **query: Any) -> Any:
        """POST."""
        return self.send(title, "POST", path, body, query=query)

    def replace(self, title: str, path: str, body: Any, **query: Any) -> Any:
        """PUT."""
        return self.send(title, "PUT", path, body, query=query)

    def merge(self, title: str, path: str, body: Any, **query: Any) -> Any:
        """PATCH as RFC 7386 has it."""
        return self.send(title, "PATCH", path, body, form=MERGE, query=query)

    def strategic(self, title: str, path: str, body: Any, **query: Any) -> Any:
        """PATCH in Kubernetes' own form."""
        return self.send(title, "PATCH", path, body, form=STRATEGIC, query=query)

    def json_patch(self, title: str, path: str, body: Any, **query: Any) -> Any:
        """PATCH as RFC 6902 has it."""
        return self.send(title, "PATCH", path, body, form=JSON_PATCH, query=query)

    def delete(self, title: str, path: str, body: Any = None, **query: Any) -> Any:
        """DELETE."""
        return self.send(title, "DELETE", path, body, query=query)

    def watch(self, title: str, path: str, *, accept: str = JSON, **query: Any) -> WatchStream:
        """Open a watch, which the end of the session closes."""
        query = {"watch": "true"} | query
        stream = Stream(self.ground, target(path, query), accept)
        self._ends.callback(stream.close)
        name = f"watch {sum('opened' in step for step in self.steps) + 1}"
        request = {"method": "GET", "path": path, "query": query}
        asked = {"accept": accept} if accept != JSON else {}
        self.steps.append({"step": title, "request": request, **asked, "status": stream.status, "opened": name})
        return WatchStream(name, stream, self.steps)

    def forget_history(self, title: str) -> None:
        """Let the server lose all older versions."""
        self.ground.forget_history()
        self.steps.append({"step": title, "history": "forgotten by the server"})

    @staticmethod
    def _shown_headers(answer: Answer) -> Step:
        shown = {name: answer.headers[name] for name in SHOWN_HEADERS if name in answer.headers}
        content_type = answer.headers.get("Content-Type", "")
        if content_type != JSON and answer.body:
            shown["Content-Type"] = content_type
        return {"headers": shown} if shown else {}
