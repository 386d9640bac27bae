"""Connections for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dracaena.kube.client import KubeClient
from dracaena.kube.transport import READ_TIMEOUT_S, Transport

SHORTEST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.05
"""Between two looks; the longest is reached after a third of a second."""


def kubeconfig_document(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def client_for(url: str, folder: Path, **options: Any) -> KubeClient:
    return client_from(kubeconfig_document(url), folder, **options)


def client_from(
    document: dict[str, Any], folder: Path, *, user_agent: str = "tests", read_timeout_s: float = READ_TIMEOUT_S
) -> KubeClient:
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return KubeClient(Transport.from_kubeconfig(str(path), user_agent=user_agent, read_timeout_s=read_timeout_s))


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 30.0) -> Any:
    """Poll a condition of another thread or process; fail with what was seen last. The only waiting that tests do.

    A process that starts beside others on a loaded machine has taken more than 10 s; waiting longer costs nothing where
    the condition comes true. Looks become rarer: most of them ask a server, and what is waited for needs the processor.
    """
    deadline, pause_s = time.monotonic() + timeout_s, SHORTEST_PAUSE_S
    while not (seen := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}; last seen: {seen!r}")
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, LONGEST_PAUSE_S)
    return seen
