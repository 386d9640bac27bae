"""The pages about shares, typed: the eleven lines, claims that ask wrongly, and what others write, written here."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from dracaena.api.config.v1alpha1 import GpuConfig, SharingStrategy, decode_config
from dracaena.api.quantity import parse_quantity
from dracaena.cli.main import main
from support.page_cluster import page_cluster

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
MIGRATION = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
USERS_PAGE = (ROOT / "docs" / "part-of-a-gpu.md").read_text(encoding="utf-8")
CLASSES = ROOT / "deploy" / "deviceclasses"
VALUES = ROOT / "deploy" / "helm" / "dracaena" / "values.yaml"
DRIVER = "gpu.dracaena.dev"
CLASS = f"share.{DRIVER}"

MIB, GIB = 1 << 20, 1 << 30

Document = dict[str, Any]


def table(heading: str, page: str = PAGE) -> list[list[str]]:
    """Return the rows of a section's table without its heading row."""
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]


def cluster(*, shares: bool = True) -> Document:
    """Return the slice of a node of eight GPUs of 80 GiB, with the setting `sharing` or without it."""
    return page_cluster(shared=shares)[0]


def request(name: str = "gpu", count: int = 1, **amounts: str) -> Document:
    exactly = {"deviceClassName": CLASS, "count": count, "capacity": {"requests": amounts}}
    return {"name": name, "exactly": exactly}


def claim(*requests: Document, name: str = "c", **devices: Any) -> Document:
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**about, "spec": {"devices": {"requests": list(requests), **devices}}}


def strategy(word: str, *requests: str) -> Document:
    parameters = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "GpuConfig", "sharing": {"strategy": word}}
    return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


ONE_GPU = [{"matchAttribute": f"{DRIVER}/uuid"}]
TWO = (request("a", memory="4Gi"), request("b", memory="4Gi"))
NOT_SHARED = "a share where no node shares its GPUs"
WRONG: dict[str, Document] = {
    "more memory than any GPU has": claim(request(memory="200Gi")),
    "`memory: 0`": claim(request(memory="0")),
    "a fraction of a MiB, `memory: 1500Ki`": claim(request(memory="1500Ki")),
    "`memory` below zero": claim(request(memory="-1Gi")),
    "`cores` without `memory`": claim(request(cores="30")),
    "more than 100 % of the cores": claim(request(memory="4Gi", cores="101")),
    NOT_SHARED: claim(request(memory="4Gi")),
    "two shares on one GPU with different strategies": claim(
        *TWO, constraints=ONE_GPU, config=[strategy("MPS", "a"), strategy("TimeSlicing", "b")]
    ),
    "two shares of one request on one GPU (`count: 2`, `matchAttribute` on `uuid`)": claim(
        request(count=2, memory="4Gi"), constraints=ONE_GPU
    ),
    "two shares on one GPU that together exceed what it has": claim(
        request("a", memory="50Gi"), request("b", memory="50Gi"), constraints=ONE_GPU
    ),
}


class Answer(NamedTuple):
    words: str
    """What validate prints, in one line."""
    reason: str
    """What simulate does."""
    devices: list[str]


def asked(folder: Path, capsys: pytest.CaptureFixture[str], wanted: Sequence[Document], pool: Document) -> Answer:
    """Type the two commands for the last of some claims."""
    for name, documents in (("cluster.yaml", [pool]), ("wanted.yaml", wanted)):
        (folder / name).write_text(yaml.dump_all(documents, Dumper=yaml.CSafeDumper), encoding="utf-8")
    main(["validate", str(folder / "wanted.yaml")])
    said = capsys.readouterr().out
    files = [argument for name in ("cluster.yaml", "wanted.yaml") for argument in ("-f", str(folder / name))]
    assert main(["simulate", *files, "-f", str(CLASSES), "-o", "json"]) == 0
    last = json.loads(capsys.readouterr().out)[-1]
    return Answer(" ".join(said.split()), last["reason"], [d["device"] for d in last["devices"]])


def test_each_wrong_request_of_the_table_is_typed() -> None:
    assert [row[0] for row in table("Wrong requests", USERS_PAGE)] == list(WRONG)


@pytest.mark.parametrize("row", table("Wrong requests", USERS_PAGE), ids=lambda row: row[0])
def test_who_asks_wrongly_is_told_in_the_words_of_the_table(
    row: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, becomes, words, by = row
    answer = asked(tmp_path, capsys, [WRONG[kind]], cluster(shares=kind != NOT_SHARED))
    assert words.strip("`") in {"`validate`": answer.words, "the rest": answer.reason}[by]
    waits = becomes.startswith(("waits", "never starts", "refused"))
    assert (answer.devices == []) is waits
    if becomes == "a share of 1 MiB":
        assert "a share of 1 MiB of memory" in answer.reason
    if becomes == "rounded up":
        assert "a share of 2 MiB of memory" in answer.reason
    if becomes == "the whole GPU":
        assert answer.reason.endswith("one GPU")


def test_two_requests_get_two_shares_of_one_gpu_by_constraint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = asked(tmp_path, capsys, [claim(*TWO, constraints=ONE_GPU)], cluster())
    assert len(answer.devices) == 2
    assert len(set(answer.devices)) == 1


@pytest.mark.parametrize("row", table("Shares of other systems", MIGRATION), ids=lambda row: row[1])
def test_a_request_of_another_system_gets_the_same_here(
    row: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, there, here = row
    amounts = dict(re.findall(r'`(memory|cores): "?(\w+)"?`', here))
    if not amounts:
        assert here.startswith(("no `capacity`", "nothing"))
        return
    memory_bytes = _memory_there(there)
    assert parse_quantity(amounts["memory"]).whole() == memory_bytes
    answer = asked(tmp_path, capsys, [claim(request(**amounts), name="one")], cluster())
    share = f"a share of {round(memory_bytes / GIB, 1):g} GiB of memory"
    ceiling = f" and {amounts['cores']} % of the cores" if "cores" in amounts else ""
    assert answer.reason.endswith(share + ceiling)
    assert "0 errors, 0 warnings" in answer.words


def _memory_there(text: str) -> int:
    """Return how much a container may use by what it writes there, on a GPU of 80 GiB."""
    for pattern, unit in (
        (r"vcuda-memory: (\d+)", 256 * MIB),
        (r"gpumem: (\d+)", MIB),
        (r"PinnedDeviceMemoryLimit: (\d+)Gi", GIB),
    ):
        if found := re.search(pattern, text):
            return int(found[1]) * unit
    if found := re.search(r"gpumem-percentage: (\d+)", text):
        return 80 * GIB * int(found[1]) // 100
    found = re.search(r"replicas: (\d+)", text)
    assert found is not None, text
    return 80 * GIB // int(found[1])


def lines() -> list[str]:
    """Return the eleven lines."""
    section = PAGE.partition("## From nothing to two pods on one GPU\n")[2].partition("\n## ")[0]
    return section.split("```")[1].strip("\n").split("\n")


def test_there_are_eleven_lines() -> None:
    assert len(lines()) == 11


def test_what_the_first_lines_set_is_in_the_chart() -> None:
    helm = shlex.split(" ".join(lines()[:2]).replace("\\", ""))
    assert (ROOT / helm[4]).is_dir()
    values = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    flags = [helm[at + 1] for at, word in enumerate(helm) if word in ("--set", "--set-json")]
    settings = {name: value for name, _, value in (flag.partition("=") for flag in flags)}
    assert settings == {
        "mps.enabled": "true",
        "kubeletPlugin.nodeSettings.shared.gpus": '[{"select":"all","as":"shared"}]',
    }
    assert values["mps"]["enabled"] is False
    assert "nodeSettings" in values["kubeletPlugin"]
    assert lines()[2].endswith(f"{DRIVER}/settings=shared")


def test_the_other_lines_put_two_pods_on_one_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = lines()
    end = typed.index("END")
    template = yaml.safe_load("\n".join(typed[4:end]))
    (config,) = template["spec"]["spec"]["devices"]["config"]
    read = decode_config(config["opaque"]["parameters"])
    assert isinstance(read, GpuConfig)
    assert read.sharing.strategy is SharingStrategy.MPS
    pods = [_pod_of("\n".join(typed[end + 1 :]), name) for name in ("first", "second")]
    claims = [claim(name=pod["metadata"]["name"]) | {"spec": template["spec"]["spec"]} for pod in pods]
    answer = asked(tmp_path, capsys, [template, *pods], cluster())
    assert "0 errors, 0 warnings" in answer.words
    devices = [asked(tmp_path, capsys, claims[:count], cluster()).devices for count in (1, 2)]
    assert devices[0] == devices[1] != []


def _pod_of(loop: str, name: str) -> Document:
    """Return the pod that the shell's loop makes: `kubectl run` with overrides."""
    found = re.fullmatch(r"for pod in first second; do (kubectl run .*); done", loop, re.DOTALL)
    assert found is not None
    words = shlex.split(found[1].replace("'$pod'", name).replace("$pod", name))
    assert words[:3] == ["kubectl", "run", name]
    overrides = json.loads(next(word for word in words if word.startswith("--overrides=")).partition("=")[2])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **overrides}
