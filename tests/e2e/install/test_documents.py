"""The commands of the pages to install, upgrade and uninstall, and those of the README's section on installing.

They are typed by an admin with helm and kubectl on PATH.

What is added: values for a node that plays a recorded machine, and pods that end before the release does.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from e2e.install.chart_cluster import ChartCluster
from e2e.install.seen import allocated, wait_pods
from e2e.installation import REPOSITORY
from e2e.waiting import eventually

DOCS = REPOSITORY / "docs"
README = REPOSITORY / "README.md"

WITH_VALUES = ("helm install ", "helm upgrade ")


def blocks(section: str, page: Path) -> list[list[str]]:
    """Return the command lines of each block of a section, without comments."""
    text = re.split(r"(?m)^## ", page.read_text(encoding="utf-8"))
    (body,) = [part for part in text if part.startswith(f"{section}\n")]
    found = re.findall(r"^```\n(.*?)^```$", body, re.MULTILINE | re.DOTALL)
    return [[line.partition(" #")[0].strip() for line in block.splitlines() if line] for block in found]


def typed(chart: ChartCluster, line: str, values: Path) -> str:
    """Run one line in a shell, in the root of the checkout."""
    whole = f"{line} --values {values}" if line.startswith(WITH_VALUES) else line
    done = subprocess.run(
        ["sh", "-c", whole], cwd=REPOSITORY, env=chart.shell(), capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def end_example(chart: ChartCluster) -> None:
    """Delete what the example made."""
    chart.kubectl("delete", "pod", "one-gpu", "--grace-period=1", "--timeout=60s")
    chart.kubectl("delete", "resourceclaimtemplate", "one-gpu")
    eventually(lambda: not allocated(chart.api), "the claim is gone", within_s=60)


def test_the_readme_installs_and_gives_a_pod_its_gpu(bare: ChartCluster) -> None:
    bare.ensure_uninstalled()
    values = bare.values_file()
    (commands,) = blocks("Install it", README)
    for line in commands:
        typed(bare, line, values)
    wait_pods(bare, "default", "Running")
    end_example(bare)
    bare.ensure_uninstalled()


def test_commands_of_the_pages_to_install_upgrade_and_uninstall_work_as_they_are(bare: ChartCluster) -> None:
    bare.ensure_uninstalled()
    values = bare.values_file()
    install, example = blocks("Install", DOCS / "install.md")
    printed = [typed(bare, line, values) for line in install]
    assert "gpu.dracaena.dev" in printed[-1]
    printed = [typed(bare, line, values) for line in example]
    assert "one-gpu" in printed[-1]
    wait_pods(bare, "default", "Running")
    for block in blocks("Upgrade", DOCS / "upgrade.md"):
        for line in block:
            typed(bare, line, values)
    end_example(bare)
    for block in blocks("Uninstall", DOCS / "uninstall.md"):
        for line in block:
            typed(bare, line, values)
    assert not bare.is_installed()
