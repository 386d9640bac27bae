"""The little of etcd's JSON gateway (``/v3/kv``) that a recording needs."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any

TIMEOUT_S = 10.0
"""etcd answers in milliseconds; the rest is for a loaded machine."""

KEY = base64.b64encode(b"transcripts").decode()
"""Outside of /registry, where kube-apiserver keeps its objects."""


def write(etcd: str) -> None:
    """Take the next revision, of which kube-apiserver makes its versions."""
    _post(etcd, "put", {"key": KEY, "value": KEY})


def compact(etcd: str) -> None:
    """Forget every revision before the present one."""
    revision = _post(etcd, "range", {"key": KEY})["header"]["revision"]
    _post(etcd, "compaction", {"revision": revision, "physical": True})


def _post(etcd: str, call: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"{etcd}/v3/kv/{call}", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.load(response)
