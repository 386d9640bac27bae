"""Fixtures of several commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dracaena.cli.main import main
from support.simulated import Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process; the result has code, out and err."""

    def _run(*arguments: object) -> SimpleNamespace:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return _run


@pytest.fixture
def node(run: Run, tmp_path: Path) -> Callable[..., Path]:
    """Write the slices of a node with a recorded machine."""

    def _node(name: str, machine: str, *, with_object: bool = True) -> Path:
        shown = run("topology", "show", "--machine", machine, "-o", "resourceslices", "--node", name)
        assert shown.code == 0, shown.err
        text = shown.out
        if with_object:
            text += yaml.safe_dump(
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}, explicit_start=True
            )
        path = tmp_path / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return _node
