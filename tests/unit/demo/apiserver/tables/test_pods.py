"""What transcripts cannot hold of pods in a table: how long ago something was. The rest is in tests/transcripts."""

from __future__ import annotations

from datetime import UTC, datetime

from dracaena.demo.apiserver.tables.pods import summary

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


def container(restarts: int, ended: str | None = None) -> dict[str, object]:
    last = {"terminated": {"exitCode": 1, "finishedAt": ended}} if ended else {}
    return {"name": "a", "state": {"running": {}}, "lastState": last, "ready": True, "restartCount": restarts}


def restarts(*containers: dict[str, object]) -> str:
    status = {"phase": "Running", "containerStatuses": list(containers)}
    return summary({"metadata": {}, "spec": {"containers": [{"name": "a"}]}, "status": status}, NOW).restarts


def test_restarts_say_when_the_last_one_was() -> None:
    assert restarts(container(0)) == "0"
    assert restarts(container(2)) == "2"
    old, new = container(1, "2026-01-01T00:10:00Z"), container(2, "2026-01-01T00:50:00Z")
    assert restarts(old, new) == restarts(new, old) == "3 (10m ago)"
    assert restarts(container(0, "2026-01-01T00:50:00Z")) == "0"
