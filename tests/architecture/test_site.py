"""What the site of the documentation needs from the pages, without building it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
START = "site_name: x\nnav:\n  - Start:\n      - README.md\n      - Runbook: runbooks/node.md\n"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "website" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = script("pages")
CHECK = script("check")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "docs/runbooks").mkdir(parents=True)
    (tmp_path / "docs/README.md").write_text(
        "# Start\n[source](../api)\n[runbook](runbooks/node.md#a-gpu-is-lost-xid-79)\n"
    )
    (tmp_path / "docs/runbooks/node.md").write_text("# Node\n## A GPU is lost: `XID 79`\n[start](../README.md)\n")
    (tmp_path / "api").mkdir()
    return tmp_path


def faults(root: Path, config: str = START) -> list[str]:
    return list(PAGES.faults(root, PAGES.read(root), config))


def test_each_page_is_in_the_navigation_once_links_resolve_and_nothing_is_fetched_from_other_hosts() -> None:
    assert faults(ROOT, PAGES.CONFIG.read_text(encoding="utf-8")) == []


def test_the_site_has_no_plugin_but_search_and_no_fonts_of_other_hosts() -> None:
    lines = {line.partition("  #")[0].strip() for line in PAGES.CONFIG.read_text(encoding="utf-8").splitlines()}
    assert {"plugins: [search]", "font: false"} <= lines
    assert not [line for line in lines if line.startswith(("hooks:", "extra_javascript:", "extra_css:", "repo_url:"))]


def test_a_sound_folder_of_pages_has_no_fault(repository: Path) -> None:
    assert faults(repository) == []


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ("[gone](gone.md)", "docs/README.md: gone.md leads nowhere"),
        ("[gone](runbooks/node.md#gone)", "docs/README.md: runbooks/node.md#gone: the page has no such heading"),
        ("[gone](#gone)", "docs/README.md: #gone: the page has no such heading"),
        ("![a](https://elsewhere.example/a.png)", "fetched from another host"),
        ("![a](//elsewhere.example/a.png)", "fetched from another host"),
        ('<script src="https://elsewhere.example/a.js"></script>', "fetched from another host"),
        ("Text:\n* item\n* item", "docs/README.md: no empty line before '* item'"),
        ("Text:\n1. step", "docs/README.md: no empty line before '1. step'"),
        ("Text:\n| a | b |\n|---|---|", "docs/README.md: no empty line before '| a | b |'"),
    ],
)
def test_a_planted_fault_of_a_page_is_found(repository: Path, planted: str, fault: str) -> None:
    page = repository / "docs/README.md"
    page.write_text(f"{page.read_text()}\n{planted}\n")
    (found,) = faults(repository)
    assert fault in found
    page.write_text(page.read_text().replace(planted, f"```\n{planted}\n```"))
    assert faults(repository) == []


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (START.replace("      - README.md\n", ""), "README.md: 0 times in the navigation, expected once"),
        (f"{START}      - README.md\n", "README.md: 2 times in the navigation, expected once"),
        (f"{START}      - gone.md\n", "gone.md: no such page, but the navigation has it"),
    ],
)
def test_a_planted_fault_of_the_navigation_is_found(repository: Path, config: str, fault: str) -> None:
    assert faults(repository, config) == [fault]


def test_links_lead_to_the_same_page_on_the_site_and_those_to_source_keep_their_text(repository: Path) -> None:
    (repository / "deploy/examples").mkdir(parents=True)
    (repository / "deploy/examples/README.md").write_text("[start](../../docs/README.md)\n")
    files = set(PAGES.read(repository))
    text = "[s](../../api) [e](../../deploy/examples) [top](#x) ![p](../README.md)\n```\n[code](../README.md)\n```\n"
    assert PAGES.moved("docs/runbooks/node.md", text, files) == (
        "s [e](../deploy/examples/README.md) [top](node.md#x) ![p](../README.md)\n```\n[code](../README.md)\n```\n"
    )
    page = (repository / "deploy/examples/README.md").read_text()
    assert PAGES.moved("deploy/examples/README.md", page, files) == "[start](../../README.md)\n"


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ('<a href="gone/">x</a>', "/index.html: gone/ leads nowhere"),
        ('<a href="#gone">x</a>', "/index.html: #gone has no such anchor"),
        ('<script src="https://elsewhere.example/a.js"></script>', "/index.html: loads https://elsewhere.example/a.js"),
        ('<link rel="stylesheet" href="//elsewhere.example/a.css">', "/index.html: loads //elsewhere.example/a.css"),
    ],
)
def test_a_planted_fault_of_the_built_site_is_found(tmp_path: Path, planted: str, fault: str) -> None:
    sound = '<h1 id="x">X</h1><a href="#x">x</a><a href="https://elsewhere.example/">y</a><a href=".">z</a>'
    (tmp_path / "index.html").write_text(sound)
    assert CHECK.faults(tmp_path, CHECK.read(tmp_path)) == []
    (tmp_path / "index.html").write_text(sound + planted)
    assert CHECK.faults(tmp_path, CHECK.read(tmp_path)) == [fault]
