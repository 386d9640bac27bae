"""A namespace whose rules let no pod of the plugin be made."""

from __future__ import annotations

import pytest

from e2e.install.chart_cluster import ChartCluster
from e2e.install.helm import CHART

NAME = "guarded"
ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_namespace_that_allows_no_plugin_is_refused_before_anything_is_made(bare: ChartCluster, level: str) -> None:
    driver = "guarded.example.com"
    arguments = ("install", NAME, CHART, "--namespace", NAME, f"--set=driverName={driver}")
    bare.kubectl("create", "namespace", NAME)
    try:
        bare.kubectl("label", "namespace", NAME, f"{ENFORCE}={level}")
        said = bare.helm.run(*arguments)
        assert said.code != 0
        assert f'namespace "{NAME}" enforces the Pod Security level "{level}"' in said.text
        assert bare.kubectl("get", "clusterrole", f"controller.{driver}", "--ignore-not-found") == ""
        (advice,) = (line.split() for line in said.text.splitlines() if line.startswith("  kubectl "))
        bare.kubectl(*advice[1:])
        bare.helm.do(*arguments, "--dry-run=server")
    finally:
        bare.kubectl("delete", "namespace", NAME)
