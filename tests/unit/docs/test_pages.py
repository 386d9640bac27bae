"""What the pages for users say is so: links lead somewhere, manifests are right and get what the text says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dracaena.api import attributes
from dracaena.api.config.v1alpha1.schemas import KINDS
from dracaena.api.decision import part_in_words
from dracaena.api.gpu_quota import QuotaItem, read_quota
from dracaena.cli.main import build_parser, main
from dracaena.controller.allocation.score.order import PARTS
from dracaena.host.facts.troubles import TroubleKind
from dracaena.kubelet_plugin.discovery.mig.layouts import read_layouts
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import read_vgpu_layouts
from support.page_cluster import NODES, page_cluster

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
CLASSES = ROOT / "deploy" / "deviceclasses"
CHART = ROOT / "deploy" / "helm" / "dracaena"
PARSER = build_parser()
"""One for all commands: it keeps nothing of what it read, and takes longer to build than any of them to read."""
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TYPED = re.compile(r"(?:^|[|$] )(?:\.venv/bin/)?dracaena ([a-z][^|>#&\n]*)", re.MULTILINE)
_NAMED = re.compile(r"`dracaena ([a-z][^`|>]*)`")
MANIFESTS = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in PAGES
    for number, text in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8")))
    if text.startswith("apiVersion: ")
]
MANIFESTS.append(
    pytest.param(
        (ROOT / "deploy" / "examples" / "kata-confidential" / "pod.yaml").read_text(encoding="utf-8"),
        id="kata-confidential",
    )
)
"""An example that no end-to-end test applies: it takes Kata."""


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


LINKING = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "deploy").rglob("*.md"))]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not _leads(target, page.parent, page)] == []


def _leads(target: str, folder: Path, page: Path) -> bool:
    """Whether a link exists, if it does not lead out of the repository."""
    path, _, anchor = target.partition("#")
    found = (folder / path) if path else page
    return "://" in target or (found.exists() and (not anchor or anchor in _anchors(found)))


_ADDRESS = re.compile(r"(?<![\w./])docs/[\w/.-]+\.md(?:#[\w-]+)?")


def addresses() -> dict[str, list[str]]:
    """Return each address of a page that code, chart or tests name → the files that name it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, list[str]] = {}
    for path in (ROOT / name for name in files if Path(name).suffix in {"", ".py", ".yaml", ".tpl", ".toml", ".json"}):
        if path.is_file() and not path.is_symlink():
            for address in _ADDRESS.findall(path.read_text(encoding="utf-8", errors="replace")):
                found.setdefault(address, []).append(str(path.relative_to(ROOT)))
    return found


def test_addresses_of_pages_in_code_chart_and_tests_exist() -> None:
    found = addresses()
    assert len(found) > 40
    assert {address: files for address, files in found.items() if not _leads(address, ROOT, ROOT)} == {}


def test_an_address_that_leads_nowhere_is_found() -> None:
    assert _leads("docs/claims.md#a-fallback", ROOT, ROOT)
    assert not any(
        _leads(f"docs/{planted}", ROOT, ROOT) for planted in ("claims.md#no-such-section", "no-such-page.md")
    )


def _prose(text: str) -> list[str]:
    """Return the lines of a page that are no code, table or heading."""
    fenced, lines = "", []
    for line in text.splitlines():
        fence = re.match(r" *(```+|~~~+)", line)
        if fence and fenced in ("", fence[1]):
            fenced = "" if fenced else fence[1]
        elif not fenced and not re.match(r" *\||#|    ", line):
            lines.append(line)
    return lines


def _broken_tables(text: str) -> list[str]:
    """Return the first lines of tables that readers do not see whole: without a heading and dashes, as what follows an
    empty line between two rows, or with a row whose cells are more or fewer than the heading's."""
    blocks = re.findall(r"(?:^ *\|.*$\n?)+", _FENCED.sub("", text), re.MULTILINE)
    tables = [block.splitlines() for block in blocks]
    return [
        table[0]
        for table in tables
        if not re.fullmatch(r" *\|( *:?-+:? *\|)+", "".join(table[1:2]))
        or len({len(re.findall(r"(?<!\\)\|", row)) for row in table}) > 1
    ]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_whole(page: Path) -> None:
    assert _broken_tables(page.read_text(encoding="utf-8")) == []


def test_a_table_that_is_cut_in_two_or_has_a_row_of_another_width_is_found() -> None:
    head, row = "| a | b |\n|---|:-:|\n", "| 1 | `x\\|y` |\n"
    assert _broken_tables(f"text\n\n{head}{row}{row}\n```\n| no | table\n```\n") == []
    assert _broken_tables(f"{head}{row}\n| 2 | 3 |\n") == ["| 2 | 3 |"]
    assert _broken_tables(f"{row}text") == _broken_tables(row.strip()) == [row.strip()]
    assert _broken_tables(f"{head}| 1 |\n") == _broken_tables(f"{head}| 1 | `x|y` |") == ["| a | b |"]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_fits_in_120_columns(page: Path) -> None:
    assert [line for line in _prose(page.read_text(encoding="utf-8")) if len(line) > 120] == []


LONGEST_WORDS = 2_500
"""Of a page for users: more than a quarter of an hour to read."""


def test_a_page_for_users_has_one_job_and_is_no_book() -> None:
    users = {page for page in PAGES if not {"design", "dev"} & set(page.parts)}
    words = {str(page.relative_to(ROOT)): len(page.read_text(encoding="utf-8").split()) for page in users}
    assert len(words) > 50
    assert {page: count for page, count in words.items() if count > LONGEST_WORDS} == {}


def test_only_prose_is_held_to_a_width() -> None:
    wide = "a" * 119 + " b"
    text = f"# {wide}\n| {wide} |\n```sh\n{wide}\n```\n{wide}\n* {wide}\n"
    assert [line for line in _prose(text) if len(line) > 120] == [wide, f"* {wide}"]


@pytest.mark.parametrize("page", ["pending.md", "reference/reasons.md"])
def test_pages_about_waiting_have_the_words_that_pods_are_told(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text.partition("## Other pods have the GPUs")[2] or text, re.MULTILINE)
    phrases = [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row)]
    files = [*sorted((ROOT / "controller").rglob("*.py")), ROOT / "api" / "gpu_quota.py", ROOT / "api" / "reasons.py"]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    told = re.sub(r"\{[^{}]*\}", "§", source)
    assert len(phrases) > 12
    for phrase in phrases:
        fixed = re.split(r"…|\d+|gpu\.dracaena\.dev|cpu", phrase)
        assert all(part.strip() in told for part in fixed), phrase


def _commands(page: Path) -> list[str]:
    """Return what stands after `dracaena` in the commands of a page; those inside a sentence may be cut short."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    typed = [
        command
        for language, block in _FENCED.findall(text)
        if language in ("", "sh")
        for command in _TYPED.findall(block)
    ]
    return [*typed, *(f"{command} --help" for command in _NAMED.findall(text))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_our_own_commands_on_a_page_have_the_verbs_and_flags_that_the_page_says(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = []
    for command in _commands(page):
        try:
            PARSER.parse_args(shlex.split(command))
        except SystemExit as end:
            if end.code != 0:
                refused.append(f"{command}: {capsys.readouterr().err}")
    assert not refused


def test_pages_hold_commands_of_ours() -> None:
    assert len([command for page in PAGES for command in _commands(page)]) > 20


@pytest.mark.parametrize("text", MANIFESTS)
def test_a_manifest_of_a_page_is_right_and_gets_its_gpus(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(text, encoding="utf-8")
    assert main(["validate", str(manifest)]) == 0, capsys.readouterr().out
    assert "0 warnings" in capsys.readouterr().out
    cluster = tmp_path / "cluster.yaml"
    slices = page_cluster(shared="share.gpu.dracaena.dev" in text)
    cluster.write_text(yaml.dump_all(slices, Dumper=yaml.CSafeDumper), encoding="utf-8")
    users = _users(list(yaml.safe_load_all(text)))
    manifest.write_text("---\n".join([text, *map(yaml.safe_dump, users)]), encoding="utf-8")
    assert main(["simulate", "-f", str(cluster), "-f", str(CLASSES), "-f", str(manifest), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found or any(kind in text for kind in ("ResourceQuota", "DeviceTaintRule", "ClusterRole", "kind: Namespace"))
    assert all(entry["node"] in NODES and entry["devices"] for entry in found)


FRAGMENTS = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in PAGES
    for number, text in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8")))
    if not text.startswith("apiVersion: ") and "design" not in page.parts
]
_QUOTA = re.compile(r"^kubectl annotate namespace \S+ --overwrite gpu\.dracaena\.dev/quota='(.*)'$", re.MULTILINE)


def _over(given: Any, defaults: Any) -> Any:
    """Return the values of the chart with those that somebody gives, as helm merges them."""
    if not (isinstance(given, dict) and isinstance(defaults, dict)):
        return given
    return {**defaults, **{key: _over(value, defaults.get(key)) for key, value in given.items()}}


def _as_values(document: dict[str, Any]) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(_over(document, values), schema)


READERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "kubeletPlugin": _as_values,
    "vgpu-configs": read_vgpu_layouts,
    "mig-configs": read_layouts,
}
"""By a key that no other kind of file has: values of the chart, and layouts."""


@pytest.mark.parametrize("text", FRAGMENTS)
def test_values_and_layouts_of_a_page_are_taken_as_they_stand(text: str) -> None:
    document = yaml.safe_load(text)
    for key, read in READERS.items():
        if key in (document or {}):
            read(document)


def test_pages_hold_values_and_layouts_of_each_kind() -> None:
    texts = [str(parameters.values[0]) for parameters in FRAGMENTS]
    assert {key for key in READERS if any(key in (yaml.safe_load(text) or {}) for text in texts)} == set(READERS)


def test_a_quota_that_a_page_has_people_write_is_one() -> None:
    found = [text for page in PAGES for text in _QUOTA.findall(page.read_text(encoding="utf-8"))]
    assert [read_quota(text) for text in found] == [{QuotaItem("gpus"): 8}]


def _users(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what uses the classes and templates that stand there without a user."""
    if any(document["kind"] == "Pod" for document in documents):
        return []
    makers = {"ResourceClaimTemplate": _pod_of, "DeviceClass": _claim_of}
    return [makers[document["kind"]](document) for document in documents if document["kind"] in makers]


def _claim_of(device_class: dict[str, Any]) -> dict[str, Any]:
    request = {"name": "gpus", "exactly": {"deviceClassName": device_class["metadata"]["name"], "count": 2}}
    spec = {"devices": {"requests": [request]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}


def _pod_of(template: dict[str, Any]) -> dict[str, Any]:
    name = template["metadata"]["name"]
    claims = [{"name": "gpus", "resourceClaimTemplateName": name}]
    containers = [{"name": "main", "image": "i", "resources": {"claims": [{"name": "gpus"}]}}]
    spec = {"resourceClaims": claims, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def test_the_page_about_scores_lists_every_part_with_its_words() -> None:
    page = (ROOT / "docs" / "reference" / "score.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert rows == [(name, part_in_words(name)) for name in PARTS]


def test_the_page_about_events_has_each_trouble_of_a_node() -> None:
    text = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    table = text.partition("| what happens to the devices |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(kind.value for kind in TroubleKind)


def test_the_page_about_attributes_lists_every_one_of_our_domain() -> None:
    text = (ROOT / "docs" / "reference" / "attributes.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| \w+ \| (.*) \|$", text, re.MULTILINE))
    ours = {
        *attributes.GPU_ATTRIBUTES,
        *attributes.MIG_ATTRIBUTES,
        *attributes.MIG_PLACE_ATTRIBUTES,
        *attributes.VFIO_ATTRIBUTES,
        *attributes.VGPU_ATTRIBUTES,
    }
    assert rows == {spec.name: spec.meaning for spec in ours if "/" not in spec.name}
    (shared,) = re.findall(r"A MIG device has the attributes (.*?)\n\n", text, re.DOTALL)
    common = {spec.name for spec in attributes.MIG_ATTRIBUTES if not spec.name.endswith(("Text", "Version"))}
    assert common - set(re.findall(r"`(\w+)`", shared)) == {"parentUUID", "profile"}
    for spec in attributes.GPU_ATTRIBUTES:
        assert spec.name.rpartition("/")[2] in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nobody_is_told_to_take_a_gpu_from_the_driver_that_the_plugin_has_open(page: Path) -> None:
    """The kernel would wait for ever: the plugin lets go first, and pods end before it."""
    text = page.read_text(encoding="utf-8")
    for command in re.finditer("driverctl set-override", text):
        before = text[: command.start()]
        assert -1 < before.find("kubectl drain NODE") < before.find("dracaena driver release")
        assert "dracaena driver resume" in text[command.end() :]


def test_the_page_about_classes_names_each_kind_of_configuration() -> None:
    text = (ROOT / "docs" / "classes.md").read_text(encoding="utf-8")
    section = text.partition("### The kinds of configuration\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(KINDS)


def test_the_glossary_has_at_most_25_words_and_none_twice() -> None:
    page = (ROOT / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8")
    glossary = page.partition("\n## Words\n")[2].partition("\n## ")[0]
    words = re.findall(r"^\| (\w+) \| ", glossary, re.MULTILINE)[1:]
    assert len(words) == len(set(words)) == glossary.count("\n| ") - 1  # one word in each row below the heading
    assert 20 <= len(words) <= 25
