"""Every command of the pages, typed by a user with kubectl, helm and dracaena in the installed cluster.

What a page speaks of is there: its files, its pods `train`, which has its GPUs, and `huge`, for which no node has
enough, and a claim for storage that waits. The names that a page leaves open stand in _OPEN. What is not typed here
stands in pages.NOT_RUN_HERE.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.gpus import GPU_COUNT
from e2e.install.chart_cluster import EXAMPLE_IMAGE, NODE_NAME, ChartCluster
from e2e.install.pages import NOT_RUN_HERE, PAGES, REPOSITORY, commands
from e2e.install.seen import devices_of, wait_pods
from e2e.installation import DRIVER
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_claim, pod_claims, wait_event
from e2e.waiting import eventually

MATRIX = REPOSITORY / "tests" / "fixtures" / "topologies" / "tabs_blank_before_last_column.txt"
CLAIMS_PAGE = REPOSITORY / "docs" / "claims.md"
CLASSES_PAGE = REPOSITORY / "docs" / "classes.md"

PRINTS = {
    "dracaena explain pod huge": f" has {GPU_COUNT + 1} GPUs, the largest has {GPU_COUNT}",
    "dracaena explain pod train": "pod default/train runs",
    "dracaena status a": "1 claim with devices",
    "dracaena version": "dracaena ",
    "kubectl --namespace dracaena get lease": "controller.gpu.dracaena.dev",
    "kubectl describe pod train": "GPUsAllocated",
    "kubectl describe pvc": "Pending",
    r"kubectl get pod train -o jsonpath='{.metadata.annotations.gpu\.dracaena\.dev/devices}'": "GPU-",
    "kubectl get resourceclaim -o yaml": "driver: decision.gpu.dracaena.dev",
    "kubectl get resourceslices --field-selector=spec.driver=gpu.dracaena.dev": NODE_NAME,
}
"""What the page says that a command shows, where it says so."""

STORAGE = """apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: ""
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
"""
"""A claim for storage that nothing can serve."""

TEAM = "research"
"""The namespace that the pages give labels to."""

FREED_S = 60.0
ANNOTATED_S = 60.0
"""The plugin annotates a pod when kubelet has its answer, 0.1 s later on a free machine."""


@dataclass(frozen=True, slots=True)
class Desk:
    """Where the user types."""

    folder: Path
    environment: Mapping[str, str]
    claim: str
    """The claim of the pod `train`."""

    def typed(self, line: str) -> str:
        """Type a command and return what it printed; it has to end well."""
        filled = _filled(line, self.claim)
        done = subprocess.run(
            ["sh", "-c", filled],
            cwd=self.folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode != 0:
            raise AssertionError(f"{filled}: exit code {done.returncode}, {done.stdout}{done.stderr}")
        return done.stdout


_OPEN = {
    r"\bNODE\b": NODE_NAME,
    r"\bstatus a$": f"status {NODE_NAME}",
    r"\bpod NAME\b": "pod train",
    r"\bmake ": f"make --directory={REPOSITORY} --dry-run ",  # most targets are the tests themselves
}
"""What a page leaves to the reader, or takes from another cluster, as a pattern, and what is typed for it."""


def _filled(line: str, claim: str) -> str:
    for pattern, text in {**_OPEN, r"\bclaim NAME\b": f"claim {claim}"}.items():
        line = re.sub(pattern, text, line)
    return line


def first_manifest(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return str(re.findall(r"^```yaml\n(apiVersion: .*?)^```", text, re.DOTALL | re.MULTILINE)[0])


@pytest.fixture
def desk(chart: ChartCluster, tmp_path: Path) -> Iterator[Desk]:
    train = re.sub(r"image: \S+", f"image: {EXAMPLE_IMAGE}", first_manifest(CLAIMS_PAGE))
    write_files(tmp_path, train)
    environment = {**chart.shell(), "PATH": f"{programs(tmp_path)}:{chart.shell()['PATH']}"}
    chart.kubectl("apply", "--filename", tmp_path / "train.yaml")
    wait_pods(chart, "default", "Running")
    create_claim(chart.api, "huge", claim_spec(GPU_COUNT + 1))
    huge = Pod("huge", claims={"gpus": "huge"})
    chart.api.create(PODS, huge.document())
    wait_event(chart.api, huge, "WaitingForGPUs", "0/1 nodes fit")
    wait_event(chart.api, Pod("train"), "GPUsAllocated", "4 of the GPUs")
    eventually(lambda: is_annotated(chart, Pod("train")), "the plugin has annotated it", within_s=ANNOTATED_S)
    chart.kubectl("apply", "--filename", tmp_path / "storage.yaml")
    chart.kubectl("create", "namespace", TEAM)
    (claim,) = pod_claims(chart.api, Pod("train")).values()
    desk = Desk(tmp_path, environment, claim["metadata"]["name"])
    desk.typed("kubectl get nodes,resourceslices,deviceclasses,pods -A -o yaml > cluster.yaml")
    yield desk
    chart.kubectl("delete", "namespace", TEAM, "--timeout=60s")
    chart.kubectl("delete", "pods", "train", "huge", "--grace-period=1", "--timeout=60s")
    chart.kubectl("delete", "resourceclaimtemplate,resourceclaim", "--all", "--timeout=60s")
    chart.kubectl("delete", "persistentvolumeclaim", "data", "--wait=false")
    eventually(lambda: not any(map(devices_of, chart.api.items(CLAIMS))), "the GPUs are free", within_s=FREED_S)
    eventually(lambda: not chart.podlist(), "the node forgets them", within_s=FREED_S)


def is_annotated(chart: ChartCluster, pod: Pod) -> bool:
    return f"{DRIVER}/devices" in chart.api.get(pod.path)["metadata"].get("annotations", {})


def write_files(folder: Path, train: str) -> None:
    """Make the files that the pages name, in a folder that stands in for the checkout."""
    for name in ("deploy", "docs"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "train.yaml").write_text(train, encoding="utf-8")
    (folder / "pod.yaml").write_text(re.sub(r"name: (train|four-gpus)$", r"name: next-\1", train, flags=re.MULTILINE))
    claim = first_manifest(CLASSES_PAGE)
    (folder / "class.yaml").write_text(claim, encoding="utf-8")
    (folder / "claim.yaml").write_text(train.partition("---\n")[0], encoding="utf-8")
    (folder / "storage.yaml").write_text(STORAGE, encoding="utf-8")
    (folder / "matrix.txt").write_bytes(MATRIX.read_bytes())
    chart = folder / "my-chart"
    (chart / "templates").mkdir(parents=True)
    about = {"apiVersion": "v2", "name": "my-chart", "version": "1.0.0"}
    (chart / "Chart.yaml").write_text(json.dumps(about), encoding="utf-8")
    (chart / "templates" / "train.yaml").write_text(train, encoding="utf-8")


def programs(folder: Path) -> Path:
    """Make the programs that a user has beside kubectl and helm: ours, and a stand-in for NVIDIA's."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    ours = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m dracaena.cli.main "$@"\n'
    for name, text in (("dracaena", ours), ("nvidia-smi", f"#!/bin/sh\nexec cat {shlex.quote(str(MATRIX))}\n")):
        (bin_folder / name).write_text(text, encoding="utf-8")
        (bin_folder / name).chmod(0o755)
    return bin_folder


def test_every_command_of_the_pages_does_what_its_page_says(desk: Desk) -> None:
    wrong = []
    typed = list(dict.fromkeys(line for page in PAGES for line in commands(page) if line not in NOT_RUN_HERE))
    for line in typed:
        try:
            printed = desk.typed(line)
        except AssertionError as error:
            wrong.append(str(error))
            continue
        if not (printed or ">" in line) or PRINTS.get(line, "") not in printed:
            wrong.append(f"{line}: printed {printed[-1000:]!r}, expected {PRINTS.get(line, 'something')!r}")
    assert not wrong, "\n".join(wrong)
    assert PRINTS.keys() <= set(typed)
