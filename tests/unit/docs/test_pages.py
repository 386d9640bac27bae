"""What the pages for users say is so: links lead somewhere, manifests are right and get what the text says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.api import attributes
from dracaena.cli.main import main

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
CLASSES = ROOT / "deploy" / "deviceclasses"
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
MANIFESTS = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in PAGES
    for number, text in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8")))
]


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path) if path else page
        assert found.exists(), target
        assert not anchor or anchor in _anchors(found), target


def _node(capsys: pytest.CaptureFixture[str], folder: Path) -> Path:
    """Write a node with the links of a DGX A100 and GPUs that every manifest of the pages can use."""
    assert main(["topology", "show", "--machine", "dgx-a100", "-o", "resourceslices", "--node", "worker-1"]) == 0
    slices = list(yaml.safe_load_all(capsys.readouterr().out))
    for item in slices:
        for number, device in enumerate(item["spec"]["devices"]):
            device["attributes"]["architecture"] = {"string": "Hopper"}
            device["attributes"]["resource.kubernetes.io/numaNode"] = {"int": number // 4}
            device["capacity"] = {"memory": {"value": "85520809984"}}
    path = folder / "worker-1.yaml"
    path.write_text(yaml.safe_dump_all(slices), encoding="utf-8")
    return path


@pytest.mark.parametrize("text", MANIFESTS)
def test_a_manifest_of_a_page_is_right_and_gets_its_gpus(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(text, encoding="utf-8")
    assert main(["validate", str(manifest)]) == 0, capsys.readouterr().out
    assert "0 warnings" in capsys.readouterr().out
    node = _node(capsys, tmp_path)
    documents = list(yaml.safe_load_all(text))
    pods = [document["metadata"]["name"] for document in documents if document["kind"] == "Pod"]
    for document in documents if not pods else ():
        if document["kind"] == "ResourceClaimTemplate":
            manifest.write_text(text + "---\n" + yaml.safe_dump(_pod_of(document)), encoding="utf-8")
    assert main(["simulate", "-f", str(node), "-f", str(CLASSES), "-f", str(manifest), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found
    assert all(entry["node"] == "worker-1" and entry["devices"] for entry in found)


def _pod_of(template: dict[str, Any]) -> dict[str, Any]:
    name = template["metadata"]["name"]
    claims = [{"name": "gpus", "resourceClaimTemplateName": name}]
    containers = [{"name": "main", "image": "i", "resources": {"claims": [{"name": "gpus"}]}}]
    spec = {"resourceClaims": claims, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def test_the_page_about_claims_lists_every_attribute_of_our_domain() -> None:
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| \w+ \| (.*) \|$", text, re.MULTILINE))
    assert rows == {spec.name: spec.meaning for spec in attributes.GPU_ATTRIBUTES if "/" not in spec.name}
    for spec in attributes.GPU_ATTRIBUTES:
        assert spec.name.rpartition("/")[2] in text
