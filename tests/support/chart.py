"""The chart as helm renders it. Needs helm: DRACAENA_HELM, PATH, or what `make e2e` has built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import binaries

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "dracaena"
KUBERNETES = "--kube-version=1.36.3"
NAMESPACE = "gpu-system"


def helm_program() -> str | None:
    built = binaries.helm(binaries.cache_root(os.environ))
    return os.environ.get("DRACAENA_HELM") or shutil.which("helm") or (str(built) if built.exists() else None)


HELM = helm_program()

needs_helm = pytest.mark.skipif(
    HELM is None, reason="no helm: not on PATH, not named by DRACAENA_HELM, not built (make e2e E2E=--build-only)"
)


def helm(*arguments: str | Path, home: Path, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    # Without its garbage collector: helm ends before its memory matters, and would spend half of its CPU on it.
    environment = {
        "HOME": str(home), "PATH": "/usr/bin:/bin", "KUBECONFIG": str(kubeconfig or home / "none"), "GOGC": "off",
    }  # fmt: skip
    return subprocess.run(
        [str(HELM), *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
    )


def render(home: Path, *arguments: str | Path) -> str:
    done = helm("template", "dracaena", CHART, "--namespace", NAMESPACE, KUBERNETES, *arguments, home=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str, kind: str) -> list[Any]:
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document and document["kind"] == kind]
