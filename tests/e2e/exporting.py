"""An exporter on the node of the tests. NVML is a stand-in; kubelet, the plugin, containers and processes are real.

kubelet makes no cgroups of pods here (cgroupsPerQOS is off), so the exporter reads the cgroups that it would make: of
processes that are there, in the container that they are really in.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prometheus_client import CollectorRegistry

from dracaena.api.machine import Machine
from dracaena.exporter.adapters.nvml_devices import NvmlDevices
from dracaena.exporter.program import ExporterProgram
from dracaena.exporter.settings import ExporterSettings
from dracaena.host.adapters.nvml.library import NvmlLibrary
from e2e.cluster import NODE_NAME, Cluster
from e2e.pods import NAMESPACE, RUN_S, Pod
from e2e.waiting import eventually
from support.exporting_node import Scrape
from support.exporting_nvml import ExportingNvml, FakeActivity, FakeProcess
from support.fake_nvml_values import FakeMig

TOLD_S = 30.0
"""podlist.json follows a container within a second on a free machine."""
OURS = "dracaena_gpu_allocation_info"


class NodeExporter:
    """The exporter of a node, whose driver the tests speak for."""

    def __init__(self, cluster: Cluster, machine: Machine, proc: Path) -> None:
        self._cluster = cluster
        self._proc = proc
        self._used: dict[int, str] = {}
        """Process that uses a device → its cgroup."""
        self.machine = machine
        self.nvml = ExportingNvml(machine)
        settings = ExporterSettings(
            node_name=NODE_NAME,
            kubelet_root=str(cluster.installation.plugin_data.parents[1]),
            http_address="127.0.0.1:0",
        )
        self.program = ExporterProgram(
            settings,
            registry=CollectorRegistry(),
            source=lambda permission, errors: NvmlDevices(NvmlLibrary(lambda: self.nvml, errors.note, permission)),
            proc_root=str(proc),
        )

    def scrape(self) -> Scrape:
        """Return what the exporter serves now, as prometheus_client reads it."""
        self._cut()
        self._place()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.program.http.port}/metrics", timeout=30) as answer:
            scrape = Scrape(answer.read().decode())
        assert scrape.value("dracaena_exporter_driver_up") == 1
        assert scrape.value("dracaena_exporter_podlist_up") == 1
        assert scrape.value("dracaena_exporter_podlist_unknown_gpus") == 0, "in podlist.json and not at the driver"
        return scrape

    def wait_owners(self, expected: dict[str, set[str]], what: str) -> Scrape:
        """Wait until exactly these containers (`pod/container`) have these devices, by UUID; return that scrape."""
        seen: list[dict[str, set[str]]] = [{}]

        def look() -> Scrape | None:
            scrape = self.scrape()
            seen[0] = allocated(scrape)
            return scrape if seen[0] == expected else None

        try:
            return eventually(look, what, within_s=TOLD_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\nexpected {expected}\nserved   {seen[0]}") from error

    def use(self, pod: Pod, activity: FakeActivity, container: str = "main", memory_mib: int = 100) -> None:
        """Let the first process of a container use a device."""
        uid = self._cluster.api.get(pod.path)["metadata"]["uid"]
        identity = container_identity(self._cluster, pod, container)
        pid = process_in(identity)
        self._used[pid] = f"/kubepods/besteffort/pod{uid}/{identity}"
        activity.processes.append(FakeProcess(pid, memory_mib=memory_mib))

    def _place(self) -> None:
        """Write the cgroups of the processes that are still there."""
        for pid, cgroup in self._used.items():
            file = self._proc / str(pid) / "cgroup"
            if cgroup.rpartition("/")[2] in _text(Path("/proc") / str(pid) / "cgroup"):
                file.parent.mkdir(exist_ok=True)
                file.write_text(f"0::{cgroup}\n", encoding="ascii")
            else:
                file.unlink(missing_ok=True)

    def _cut(self) -> None:
        """Have the driver say of MIG devices what the plugin's stand-in for it holds."""
        found: list[FakeMig] = []
        for number, gpu in enumerate(self.machine.gpus):
            path = self._cluster.installation.plugin_data / "recorded-mig" / f"{gpu.uuid}.json"
            instances = json.loads(path.read_bytes())["instances"] if path.exists() else []
            found += [
                FakeMig(
                    number, place, each["uuid"], f"NVIDIA MIG {each['profile']}", each["number"], start=each["start"]
                )
                for place, each in enumerate(instances)
                if each.get("uuid")
            ]
        for mig in found:
            self.nvml.mig_activity.setdefault(mig.uuid, FakeActivity())
        self.nvml.migs = tuple(found)


def allocated(scrape: Scrape) -> dict[str, set[str]]:
    """Return UUID of a device → `pod/container` of all series that say who has it."""
    found: dict[str, set[str]] = {}
    for labels, value in scrape.samples.get(OURS, ()):
        assert value == 1
        assert labels["namespace"] == NAMESPACE
        found.setdefault(labels["uuid"], set()).add(f"{labels['pod']}/{labels['container']}")
    return found


def container_identity(cluster: Cluster, pod: Pod, container: str) -> str:
    """Wait until a container of a pod runs, an init container too, and return its id as kubelet tells it."""

    def look() -> str:
        status = cluster.api.get(pod.path)["status"]
        statuses = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
        return next((str(one["containerID"]) for one in statuses if _runs(one, container)), "").rpartition("/")[2]

    return eventually(look, f"{container} of {pod.name} runs", within_s=RUN_S)


def process_of(cluster: Cluster, pod: Pod, container: str = "main") -> int:
    """Return the first process of a container of a pod, once it runs."""
    return process_in(container_identity(cluster, pod, container))


def process_in(identity: str) -> int:
    """Return the first process of a container."""
    pids = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cgroup") if identity in _text(path)]
    assert pids, f"no process of {identity}"
    return min(pids)


def _runs(status: Any, container: str) -> bool:
    return status["name"] == container and "running" in status.get("state", {})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


@contextmanager
def node_exporter(cluster: Cluster, machine: Machine) -> Iterator[NodeExporter]:
    """Give an exporter that serves."""
    with TemporaryDirectory() as proc:
        made = NodeExporter(cluster, machine, Path(proc))
        made.program.start()
        try:
            yield made
        finally:
            made.program.stop()
