"""What an admin does with the chart, from install to uninstall."""

from __future__ import annotations

from e2e.gpus import GPU_COUNT
from e2e.install.chart_cluster import NAMESPACE, ChartCluster


def test_image_has_every_package_and_both_programs(bare: ChartCluster) -> None:
    everything = (
        "import importlib, pkgutil, dracaena\n"
        "names = [m.name for m in pkgutil.walk_packages(dracaena.__path__, 'dracaena.')]\n"
        "for name in names:\n"
        "    importlib.import_module(name)\n"
        "print(len(names))\n"
    )
    imported = bare.files_in_image("python3", "-P", "-c", everything)
    assert imported.returncode == 0, imported.stderr
    assert int(imported.stdout) > 200
    for program in ("controller", "kubelet-plugin"):
        said = bare.files_in_image("dracaena", program, "--help")
        assert said.returncode == 0, said.stderr
        assert f"usage: dracaena {program}" in said.stdout
    assert bare.files_in_image("id", "-u").stdout.strip() == "65532"


def test_install_brings_both_parts_up(chart: ChartCluster) -> None:
    devices = [device for one in chart.slices() for device in one["spec"].get("devices", ())]
    assert len(devices) == GPU_COUNT
    deployment = chart.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/dracaena-controller")
    assert deployment["status"]["readyReplicas"] == 2
    daemon_set = chart.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/dracaena-kubelet-plugin")
    assert daemon_set["status"]["numberReady"] == 1
