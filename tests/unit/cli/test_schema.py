from __future__ import annotations

import json
from pathlib import Path

import pytest

from dracaena.api.config.v1alpha1.schemas import EDITOR_SCHEMAS, editor_schema
from dracaena.api.podlist import podlist_schema
from dracaena.cli.main import main
from dracaena.cli.schema import NAMES, PODLIST

PUBLISHED = Path(__file__).parents[3] / "docs" / "schemas"


def test_every_schema_can_be_printed_and_that_of_manifests_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert (*EDITOR_SCHEMAS, PODLIST) == NAMES
    for name in (None, *EDITOR_SCHEMAS):
        assert main(["schema", *([name] if name else [])]) == 0
        assert json.loads(capsys.readouterr().out) == editor_schema(name or "manifest")


def test_the_schema_of_podlist_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "podlist"]) == 0
    assert json.loads(capsys.readouterr().out) == podlist_schema()


def test_the_driver_is_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--driver-name", "gpu.example.com"]) == 0
    assert json.loads(capsys.readouterr().out) == editor_schema("manifest", "gpu.example.com")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_published_is_up_to_date(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", name]) == 0
    published = (PUBLISHED / f"{name}.json").read_text(encoding="utf-8")
    assert published == capsys.readouterr().out, "docs/schemas/ is out of date: make schemas"


def test_nothing_else_is_published() -> None:
    assert {path.stem for path in PUBLISHED.iterdir()} == set(NAMES)
