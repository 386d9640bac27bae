"""The Kubernetes API as plain JSON over HTTPS, for looking at a cluster without any code that is under test."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 30.0
"""For one request: kube-apiserver answers in milliseconds once it is up; the rest is for a loaded machine."""

MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
NO_ANSWER = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said. `status` is NO_ANSWER when it could not be reached."""

    status: int
    text: str

    @property
    def is_good(self) -> bool:
        """Whether the server did what it was asked. NO_ANSWER is below 300, and no success."""
        return 200 <= self.status < 300

    @property
    def document(self) -> Any:
        """The JSON that was sent; the text itself when it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return self.text

    @property
    def message(self) -> str:
        """The text of a refusal."""
        document = self.document
        return str(document.get("message", "")) if isinstance(document, dict) else self.text


class ApiError(AssertionError):
    """A request that should work was refused."""


class Api:
    """One identity at the server."""

    def __init__(self, server: str, authority: Path, token: str) -> None:
        self._server = server
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._token = token

    def send(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> Answer:
        """Send one request and return whatever comes back. Bytes are sent as they are."""
        request = urllib.request.Request(f"{self._server}{path}", method=method)
        request.add_header("Authorization", f"Bearer {self._token}")
        data = None
        if body is not None:
            request.add_header("Content-Type", content_type)
            # Opaque parameters are stored as they are sent.
            data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=TIMEOUT_S, context=self._tls) as response:
                return Answer(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode())
        except (OSError, http.client.HTTPException) as error:
            return Answer(NO_ANSWER, str(error))

    def get(self, path: str) -> Any:
        """Return the object or list at a path."""
        return self._want(self.send("GET", path), f"GET {path}")

    def find(self, path: str) -> Any | None:
        """Return the object at a path, None when there is none."""
        answer = self.send("GET", path)
        return None if answer.status == 404 else self._want(answer, f"GET {path}")

    def items(self, path: str) -> list[Any]:
        """Return the objects of a collection, sorted by namespace and name."""
        found: list[Any] = self.get(path)["items"]
        return sorted(found, key=lambda item: (item["metadata"].get("namespace", ""), item["metadata"]["name"]))

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """Create an object in a collection."""
        return self._want(self.send("POST", path, body), f"POST {path}")

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Change an object with a JSON merge patch."""
        return self._want(self.send("PATCH", path, body, MERGE_PATCH), f"PATCH {path}")

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Ask for the deletion of an object; one that is not there is deleted already."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions"}
        body = options if grace_s is None else {**options, "gracePeriodSeconds": grace_s}
        answer = self.send("DELETE", path, body)
        if answer.status != 404:
            self._want(answer, f"DELETE {path}")

    def _want(self, answer: Answer, call: str) -> Any:
        if not answer.is_good:
            raise ApiError(f"{call}: {answer.status} {answer.message}")
        return answer.document
