from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dracaena.kube.server_version import server_version, too_old
from support.kube import client_for
from support.scripted_server import Request, ScriptedServer


def said(tmp_path: Path, code: int, document: Any) -> str:
    def answer(request: Request) -> None:
        assert request.path == "/version"
        request.answer(code, document)

    with ScriptedServer(answer) as server:
        return too_old(server_version(client_for(server.url, tmp_path)))


@pytest.mark.parametrize(("major", "minor"), [("1", "36"), ("1", "37"), ("1", "36+"), ("2", "0")])
def test_a_server_that_is_new_enough_is_no_trouble(tmp_path: Path, major: str, minor: str) -> None:
    assert said(tmp_path, 200, {"major": major, "minor": minor, "gitVersion": "v1.36.3"}) == ""


@pytest.mark.parametrize("minor", ["35", "35+", "9"])
def test_an_older_server_is_named_with_what_is_needed(tmp_path: Path, minor: str) -> None:
    seen = f"the API server answers as Kubernetes 1.{minor.rstrip('+')}, and 1.36 or newer is needed"
    assert said(tmp_path, 200, {"major": "1", "minor": minor}).startswith(seen)


def test_the_version_that_a_newer_server_emulates_counts(tmp_path: Path) -> None:
    answer = {"major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "35", "gitVersion": "v1.36.3"}
    assert "as Kubernetes 1.35 (by --emulated-version), and 1.36 or newer" in said(tmp_path, 200, answer)
    assert said(tmp_path, 200, {**answer, "emulationMinor": "36"}) == ""


@pytest.mark.parametrize(
    ("code", "document"),
    [
        (500, {}),
        (403, {"kind": "Status", "code": 403}),
        (200, {}),
        (200, {"major": 1, "minor": 35}),
        (200, {"major": "one", "minor": "35"}),
        (200, []),
    ],
)
def test_a_server_that_does_not_say_is_left_alone(tmp_path: Path, code: int, document: Any) -> None:
    assert said(tmp_path, code, document) == ""
