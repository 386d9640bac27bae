"""Each kind of sample on the page about migration, typed: what the page says is what a user gets."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
import yaml

from dracaena.api.resource_objects import ResourceSliceSpec
from dracaena.cli.main import main
from dracaena.kubelet_plugin.device_kinds.shared_device import shared_device
from support.page_cluster import node_divided_on_demand, page_cluster

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "migrate.md"
CLASSES = ROOT / "deploy" / "deviceclasses"
DRIVER = "gpu.dracaena.dev"


class Row(NamedTuple):
    kind: str
    of: str
    here: str
    answer: str


def rows() -> dict[str, Row]:
    """Return the table "Sample by sample" by its first column."""
    section = PAGE.read_text(encoding="utf-8").partition("## Sample by sample")[2].partition("\n## ")[0]
    found = [Row(*re.split(r" \| ", line.strip("| "))) for line in section.splitlines() if line.startswith("| ")]
    return {row.kind: row for row in found[1:]}


def request(device_class: str = DRIVER, name: str = "gpu", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class, **fields}}


def claim(*requests: dict[str, Any], name: str = "c", **devices: Any) -> dict[str, Any]:
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**about, "spec": {"devices": {"requests": list(requests or (request(),)), **devices}}}


def pod(claims: dict[str, tuple[str, ...]], init: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a pod that names claims; each container (by name) uses some of them."""

    def container(name: str, uses: tuple[str, ...]) -> dict[str, Any]:
        return {"name": name, "image": "i", "resources": {"claims": [{"name": each} for each in uses]}}

    names = sorted({each for uses in claims.values() for each in uses})
    spec: dict[str, Any] = {
        "resourceClaims": [{"name": each, "resourceClaimName": each} for each in names],
        "containers": [container(name, uses) for name, uses in claims.items() if name not in init],
    }
    if init:
        spec["initContainers"] = [container(name, claims[name]) for name in init]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def limited(resource: str) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"limits": {resource: 1}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}


def opaque(kind: str, requests: list[str] | None = None, **fields: Any) -> dict[str, Any]:
    parameters = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": kind, **fields}
    config: dict[str, Any] = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    return {**config, "requests": requests} if requests else config


def profile(name: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "{name}"'}}]


MIG = "mig.gpu.dracaena.dev"
RULE = {
    "apiVersion": "resource.k8s.io/v1beta2",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "service"},
    "spec": {
        "deviceSelector": {"driver": DRIVER},
        "taint": {"key": "example.com/service", "value": "soon", "effect": "NoSchedule"},
    },
}
ALTERNATIVES = [
    {"name": "large", "deviceClassName": DRIVER, "count": 4},
    {"name": "small", "deviceClassName": DRIVER, "count": 1},
]
TAINTED: Final = "a DeviceTaintRule"
EXTENDED: Final = "extended resource `nvidia.com/gpu`"

TYPED: dict[str, list[dict[str, Any]]] = {
    "several requests in one claim": [claim(request(name="a"), request(name="b", count=2))],
    "a claim for each container of a pod": [claim(name="a"), claim(name="b"), pod({"first": ("a",), "second": ("b",)})],
    "one claim, an init container and a container": [
        claim(),
        pod({"before": ("c",), "main": ("c",)}, init=("before",)),
    ],
    "a configuration for one alternative": [
        claim(
            {"name": "gpu", "firstAvailable": ALTERNATIVES},
            request(name="extra"),
            config=[opaque("TopologyPolicy", ["gpu/large"], requirement="NVLink")],
        )
    ],
    TAINTED: [RULE, claim()],
    "a claim that tolerates the taint of a rule": [
        RULE,
        claim(request(tolerations=[{"key": "example.com/service", "operator": "Exists"}])),
    ],
    "device metadata in the container": [claim()],
    "health in the pod's status": [claim()],
    "who has which GPU, by kubelet's pod-resources": [claim()],
    "cpu or memory that a GPU costs its pod (node-allocatable resources)": [claim()],
    "MIG devices by profile": [claim(request(MIG, selectors=profile("1g.10gb")))],
    "MIG devices of one GPU (`matchAttribute` on `parentUUID`)": [
        claim(
            request(MIG, "a", selectors=profile("1g.10gb")),
            request(MIG, "b", selectors=profile("3g.40gb")),
            constraints=[{"matchAttribute": f"{DRIVER}/parentUUID"}],
        )
    ],
    "MIG devices made on demand, partitionable devices": [claim(request(MIG, selectors=profile("4g.40gb")))],
    "MPS": [
        claim(
            request(capacity={"requests": {"memory": "10Gi"}}),
            config=[opaque("GpuConfig", sharing={"strategy": "MPS"})],
        )
    ],
    "time slicing": [
        claim(
            request(capacity={"requests": {"memory": "10Gi"}}),
            config=[opaque("GpuConfig", sharing={"strategy": "TimeSlicing", "interval": "Long"})],
        )
    ],
    "a share of a GPU by its memory (consumable capacity)": [claim(request(capacity={"requests": {"memory": "10Gi"}}))],
    "VFIO pass-through": [claim(request("vfio.gpu.nvidia.com"))],
    "ComputeDomain, IMEX channels": [claim(request("compute-domain-default-channel.nvidia.com"))],
    "network cards, cpus": [claim(request("net.example.com"))],
    EXTENDED: [limited("nvidia.com/gpu")],
    "extended resource of a MIG profile, `nvidia.com/mig-1g.10gb`": [limited("nvidia.com/mig-1g.10gb")],
}
"""What a user would write for each kind of sample that no example of ours shows."""


def documents(row: Row) -> list[dict[str, Any]]:
    if row.kind in TYPED:
        return TYPED[row.kind]
    (example,) = re.findall(r"\]\(\.\./deploy/examples/([\w-]+)/README\.md\)", row.answer)
    files = sorted((ROOT / "deploy" / "examples" / example).glob("*.yaml"))
    return [one for path in files for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def text_of(documents: Sequence[dict[str, Any]]) -> str:
    return str(yaml.dump_all(documents, Dumper=yaml.CSafeDumper))  # the one in Python takes longer than all the rest


class Said(NamedTuple):
    words: str
    """What validate and simulate print, in one line."""
    is_valid: bool
    served: tuple[int, int]
    """Claims that get their devices, and claims."""


def said(
    wanted: list[dict[str, Any]],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    cluster: Sequence[dict[str, Any]] = (),
) -> Said:
    """`cluster` has ResourceSlices beside those of the pages' cluster."""
    (folder / "sample.yaml").write_text(text_of(wanted), encoding="utf-8")
    (folder / "all.yaml").write_text(text_of([*page_cluster(), *cluster, *wanted]), encoding="utf-8")
    code = main(["validate", str(folder / "sample.yaml")])
    assert main(["simulate", "-f", str(folder / "all.yaml"), "-f", str(CLASSES)]) == 0
    printed = capsys.readouterr()
    words = " ".join(f"{printed.out} {printed.err}".split())
    counts = [(int(got), int(asked)) for got, asked in re.findall(r"(\d+) of (\d+) claims? gets? their devices", words)]
    return Said(words, code == 0, counts[0] if counts else (0, 0))


def test_table_has_each_kind_once_and_nothing_is_typed_that_it_lacks() -> None:
    assert len(rows()) > 20
    assert set(TYPED) <= set(rows())
    assert {row.of for row in rows().values()} == {"N", "E", "N, E"}


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.kind)
def test_a_sample_gets_what_its_row_says(row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on_demand = node_divided_on_demand() if "as: mig" in row.here else []
    answer = said(documents(row), tmp_path, capsys, on_demand)
    for words in re.findall(r"`([^`]+ [^`]+)`", row.answer):
        assert words in answer.words
    got, asked = answer.served
    if row.kind == TAINTED:
        assert answer.is_valid
        assert (got, asked) == (0, 1), "the rule closes every GPU"
    elif row.here.startswith("yes"):
        assert answer.is_valid
        assert got == asked != 0
    elif row.here.startswith("not yet"):
        assert answer.is_valid
        assert got == asked != 0
        assert "1 warning" in answer.words, "it gets its devices, so only a warning can tell"
    else:
        assert not answer.is_valid or got == 0
        assert "Dracaena gives no devices" in answer.words or re.search(r"`[^`]+ [^`]+`", row.answer)


def test_claims_of_two_containers_count_as_one_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page says so of both kinds that have several requests."""
    for kind, pairs in (("several requests in one claim", 3), ("a claim for each container of a pod", 1)):
        assert rows()[kind].here == "yes, as one set"
        assert f"{pairs} pair" in said(TYPED[kind], tmp_path, capsys).words


def test_claims_for_shares_get_parts_of_one_gpu_where_a_node_shares_its_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share = request("share.gpu.dracaena.dev", capacity={"requests": {"memory": "10Gi"}})
    pool = page_cluster()[0]
    spec = msgspec.convert(pool["spec"], ResourceSliceSpec)
    shared = [shared_device(device, 40 << 30) for device in spec.devices]
    pool["spec"]["devices"] = [msgspec.to_builtins(device) for device in shared]
    wanted = [claim(share, name="a"), claim(share, name="b")]
    (tmp_path / "all.yaml").write_text(text_of([pool, *wanted]), encoding="utf-8")
    assert main(["simulate", "-f", str(tmp_path / "all.yaml"), "-f", str(CLASSES), "-o", "json"]) == 0
    got = [entry["devices"][0]["device"] for entry in json.loads(capsys.readouterr().out)]
    assert len(got) == 2
    assert len(set(got)) == 1


def test_a_selector_with_the_domain_of_nvidias_driver_waits_with_the_words_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expression = 'device.attributes["gpu.nvidia.com"].productName == "A100"'
    answer = said([claim(request(selectors=[{"cel": {"expression": expression}}]))], tmp_path, capsys)
    assert answer.served == (0, 1)
    words = "did you mean gpu.dracaena.dev/productName?"
    assert words in answer.words
    assert f"`{words}`" in PAGE.read_text(encoding="utf-8")


def test_the_commands_of_the_page_answer_for_its_manifests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    classes = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CLASSES.glob("*.yaml"))]
    Path("cluster.yaml").write_text(text_of([*page_cluster(), *classes]), encoding="utf-8")
    manifests = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    Path("pod.yaml").write_text(manifests[0], encoding="utf-8")
    typed = re.findall(r"^dracaena (.*)$", text, re.MULTILINE)
    assert len(typed) == 2
    for command in typed:
        assert main(shlex.split(command)) == 0
    assert "1 of 1 claims get their devices" in capsys.readouterr().out
