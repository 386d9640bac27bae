"""Every kubectl command of docs/demo.md, typed as it stands there, on the demo's cluster."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.demo.cluster import DemoCluster
from dracaena.demo.scenario import NODES, WAITING, load_manifests
from support.embedded_cluster import apply_in_order, wait_settled
from support.kubectl_programs import VERSIONS, kubectl_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "demo.md"
BLOCK = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LONGEST_S = 300
"""No block waits longer: the sum of the time-outs that its commands state."""


def blocks() -> list[str]:
    """The blocks of the page that people copy into a shell."""
    return [text for text in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if "kubectl " in text]


def typed(program: Path, cluster: DemoCluster, folder: Path) -> Iterator[subprocess.CompletedProcess[str]]:
    """Run each block as a script that ends at its first failure."""
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder), "KUBECONFIG": str(cluster.kubeconfig)}
    for block in blocks():
        yield subprocess.run(
            ["bash", "-e", "-x", "-c", block],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )


def test_the_page_has_commands() -> None:
    assert sum(line.startswith("kubectl ") for block in blocks() for line in block.splitlines()) >= 30


@pytest.mark.parametrize("version", VERSIONS)
def test_each_command_of_the_page_works(version: str, tmp_path: Path) -> None:
    program = kubectl_of(version)
    manifests = load_manifests()
    with DemoCluster(NODES, kubernetes=version) as cluster:
        apply_in_order(cluster, manifests)
        wait_settled(cluster, WAITING, pods=sum(one["kind"] == "Pod" for each in manifests for one in each.documents))
        for done in typed(program, cluster, tmp_path):
            assert done.returncode == 0, done.stdout + done.stderr
