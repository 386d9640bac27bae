"""A real Prometheus with the chart's alerts, and an exporter for it.

NVML is a stand-in below the real pynvml, and so is /proc: the kubelet of these tests puts no pod into a cgroup of its
own (`cgroupsPerQOS: false`).
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from prometheus_client import CollectorRegistry

from dracaena.exporter.adapters.nvml_devices import NvmlDevices
from dracaena.exporter.collector import NvmlErrorCounts
from dracaena.exporter.program import ExporterProgram
from dracaena.exporter.settings import ExporterSettings
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.host.gpu_driver.permission import GpuDriverPermission
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from e2e.cluster import Cluster
from e2e.installation import CONTROLLER_PORT, PLUGIN_PORT
from e2e.processes import Program
from e2e.waiting import eventually
from support.exporting_nvml import ExportingNvml, FakeProcess

RULES: Final = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "dracaena" / "files" / "alerts.yaml"
PORT: Final = 9490
START_S: Final = 30.0
"""It answers within a second on a free machine."""
_PID: Final = 4711
_FOR = re.compile(r"(?m)^(\s+for:) \w+$")


class Exporter:
    """An exporter of the cluster's node: its podlist.json, and GPUs that are the plugin's by UUID."""

    def __init__(self, cluster: Cluster, proc: Path) -> None:
        self._proc = proc
        machine = read_machine(str(cluster.gpus.machine))
        self.nvml = ExportingNvml(machine)
        self._number = {gpu.uuid: number for number, gpu in enumerate(machine.gpus)}
        for does in self.nvml.activity:
            does.gpm = True
        self.program = ExporterProgram(
            ExporterSettings(
                node_name=cluster.node.name,
                kubelet_root=str(cluster.node.kubelet_root),
                http_address="127.0.0.1:0",
            ),
            registry=CollectorRegistry(),
            source=self._source,
            proc_root=str(proc),
        )

    def compute(self, uuid: str, pod_uid: str) -> None:
        """Let a process of a pod use two fifths of a GPU."""
        folder = self._proc / str(_PID)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::/kubepods/pod{pod_uid}/{'c' * 64}\n", encoding="ascii")
        self.nvml.activity[self._number[uuid]].processes = [FakeProcess(_PID, sm_percent=40)]

    def go_on(self) -> None:
        """Let NVML have newer samples of what processes use than those it was asked for."""
        for does in self.nvml.activity:
            does.sampled_us += 1_000_000

    def _source(self, permission: GpuDriverPermission | None, errors: NvmlErrorCounts) -> NvmlDevices:
        return NvmlDevices(NvmlLibrary(lambda: self.nvml, errors.note, permission))


@contextmanager
def exporting(cluster: Cluster, proc: Path) -> Iterator[Exporter]:
    """Serve what the node's GPUs do."""
    exporter = Exporter(cluster, proc)
    exporter.program.start()
    try:
        yield exporter
    finally:
        exporter.program.stop()


class Prometheus:
    """A server that scrapes each second, and evaluates the rules as often."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Return what an expression gives now: labels and value of each sample."""
        result = self._get("query?" + urllib.parse.urlencode({"query": expression}))["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def names(self) -> frozenset[str]:
        """Return the names of all series that it ever scraped."""
        return frozenset(self._get("label/__name__/values"))

    def firing(self) -> frozenset[str]:
        """Return the names of the alerts that fire now."""
        return frozenset(labels["alertname"] for labels, _ in self.query('ALERTS{alertstate="firing"}'))

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/-/ready", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus(folder: Path, binaries: Path, logs: Path, cluster: Cluster, exporter: Exporter) -> Iterator[Prometheus]:
    """Run one that scrapes all three programs as the chart's PodMonitors ask for."""
    # How long each alert waits is what `promtool test rules` is for.
    (folder / "alerts.yaml").write_text(_FOR.sub(r"\1 1s", RULES.read_text(encoding="utf-8")), encoding="utf-8")
    of_exporter = exporter.program.http.port
    jobs = [
        _job("controller", CONTROLLER_PORT, {"node": cluster.node.name, **_pod("controller")}),
        _job("kubelet-plugin", PLUGIN_PORT, {"node": cluster.node.name, **_pod("kubelet-plugin")}),
        _job("exporter", of_exporter, {"node": cluster.node.name}) | {"honor_labels": True},
    ]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = (
        binaries / "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{PORT}",
    )
    server = Prometheus(Program("prometheus", command, logs))
    server.program.start()
    try:
        eventually(server.is_ready, "Prometheus is ready", within_s=START_S, programs=(server.program,))
        yield server
    finally:
        server.program.stop()


def _job(name: str, port: int, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": dict(labels)}]}


def _pod(component: str) -> Mapping[str, str]:
    return {"namespace": "dracaena", "pod": f"dracaena-{component}-0", "container": component}
