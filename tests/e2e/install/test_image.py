"""What is in the image, and what is not."""

from __future__ import annotations

import json

from e2e.install.chart_cluster import ChartCluster

PROGRAMS = "import dracaena.controller.program, dracaena.kubelet_plugin.program"

BYTECODE = f"""
import json, pathlib, sys
{PROGRAMS}
answer = {{"missing": [], "ours": 0, "flags": []}}
for module in list(sys.modules.values()):
    source = getattr(module, "__file__", None) or ""
    if not source.endswith(".py") or "/kubernetes/client/" in source or not getattr(module, "__cached__", None):
        continue  # what is frozen into the interpreter has none
    cached = pathlib.Path(module.__cached__)
    if not cached.exists():
        answer["missing"].append(source)
    elif source.startswith(sys.prefix):
        answer["ours"] += 1
        answer["flags"].append(int.from_bytes(cached.read_bytes()[4:8], "little"))
answer["flags"] = sorted(set(answer["flags"]))
print(json.dumps(answer))
"""

UNCHECKED_HASH = 0b01
"""Flags of a .pyc file that is taken without a look at its source (PEP 552)."""


def test_programs_start_from_bytecode_alone(bare: ChartCluster) -> None:
    """The root file system is read-only: what is not compiled in the image is compiled at every start."""
    said = bare.files_in_image("python3", "-P", "-c", BYTECODE)
    assert said.returncode == 0, said.stderr
    answer = json.loads(said.stdout)
    assert answer["missing"] == []
    assert answer["ours"] > 200
    assert answer["flags"] == [UNCHECKED_HASH]


def test_image_holds_no_installer_and_no_asyncio_client(bare: ChartCluster) -> None:
    listed = bare.files_in_image("sh", "-c", "ls /opt/dracaena/lib/python3*/site-packages /opt/dracaena/bin /tmp")
    assert listed.returncode == 0, listed.stderr
    names = set(listed.stdout.split())
    assert {"dracaena", "kubernetes", "kubectl-dracaena"} <= names
    assert not names & {"pip", "setuptools", "aiohttp", "multidict", "yarl", "loaded"}
