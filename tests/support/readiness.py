"""What a program of ours says on its HTTP port."""

from __future__ import annotations

import urllib.error
import urllib.request


def readiness(port: int) -> tuple[int, str]:
    """Status and text of /readyz; status 0 while nobody answers."""
    return _get(port, "/readyz")


def metric(port: int, name: str) -> float | None:
    """The value of a metric without labels."""
    for line in _get(port, "/metrics")[1].splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    return None


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""
