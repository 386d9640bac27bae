"""What several tests of the chart's folder take, and takes seconds to make."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "image" / "wheels.py"


@pytest.fixture(scope="session")
def own_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's own wheel, as the image and the plugin for krew hold it. No test changes it."""
    spec = importlib.util.spec_from_file_location("wheels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("own_wheel")
    (folder / "wheels").mkdir()
    wheel: Path = script._own_wheel(folder / "source", folder / "wheels")
    return wheel
