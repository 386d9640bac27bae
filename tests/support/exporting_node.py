"""A node with an exporter: a fake driver below the real pynvml, podlist.json and /proc on disk, HTTP."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dracaena.api.machine import Gpu, Machine
from dracaena.api.podlist import PODLIST, PodlistEntry
from dracaena.exporter.adapters.nvml_devices import NvmlDevices, Spread
from dracaena.exporter.collector import NvmlErrorCounts
from dracaena.exporter.program import ExporterProgram
from dracaena.exporter.settings import ExporterSettings
from dracaena.exporter.side_by_side import side_by_side
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.host.gpu_driver.permission import GpuDriverPermission
from dracaena.process.clock import Clock
from support.exporting_nvml import ExportingNvml
from support.fake_nvml_values import FakeMig
from support.podlists import encode_podlist
from support.topologies import topology_from_matrix

HOST = "node-1"
DEADLINE_S = 20.0
"""Less than get() waits for an answer."""
Key = tuple[str, frozenset[tuple[str, str]]]


def gpu_uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def pod_uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def machine_of(count: int) -> Machine:
    gpus = tuple(
        Gpu(
            uuid=gpu_uuid(n),
            index=n,
            minor=n,
            product_name="NVIDIA H100 80GB HBM3",
            pci_bus_id=f"0000:{0x18 + n:02x}:00.0",
            memory_bytes=80 << 30,
        )
        for n in range(count)
    )
    matrix = [["X" if n == m else "PIX" for m in range(count)] for n in range(count)]
    return Machine("node", gpus, topology_from_matrix(matrix), driver_version="580.65.06")


def mig_uuid(number: int) -> str:
    return f"MIG-00000000-0000-4000-8000-{number:012d}"


def mig_of(parent: int, number: int, profile: str = "1g.10gb", **changes: Any) -> FakeMig:
    device = {"gpu_instance": 7 + number, "start": number, "memory_mib": 9_984, **changes}
    return FakeMig(parent, number, mig_uuid(10 * parent + number), f"NVIDIA MIG {profile}", **device)


def entry(pod: str, *gpus: str, number: int = 0, container: str = "main", **more: Any) -> PodlistEntry:
    return PodlistEntry(pod, "team", container, gpus, uid=pod_uid(number), claims=(f"claim-of-{pod}",), **more)


class ExportingNode:
    """One exporter, to be started by exporting_node()."""

    def __init__(
        self,
        folder: Path,
        nvml: ExportingNvml,
        clock: Clock | None = None,
        *,
        spread: Spread = side_by_side,
        deadline_s: float = DEADLINE_S,
        **settings: Any,
    ) -> None:
        self.folder, self.nvml, self._spread = folder, nvml, spread
        self.proc = folder / "proc"
        self.podlist = folder / "kubelet" / "pod-resources" / PODLIST
        self.podlist.parent.mkdir(parents=True, exist_ok=True)
        values = {"node_name": HOST, "kubelet_root": str(folder / "kubelet"), "http_address": "127.0.0.1:0", **settings}
        self.program = ExporterProgram(
            ExporterSettings(**values),
            clock=clock,
            registry=CollectorRegistry(),
            source=self._source,
            proc_root=str(self.proc),
            sys_root=str(folder / "sys"),
            deadline_s=deadline_s,
        )

    def _source(self, permission: GpuDriverPermission | None, errors: NvmlErrorCounts) -> NvmlDevices:
        library = NvmlLibrary(lambda: self.nvml, errors.note, permission)
        return NvmlDevices(library, spread=self._spread)

    def list(self, *entries: PodlistEntry) -> None:
        temporary = self.podlist.with_suffix(".new")
        temporary.write_bytes(encode_podlist(entries))
        temporary.replace(self.podlist)

    def run(self, pid: int, pod: str, container: str = "c" * 64) -> None:
        """Put a process into the cgroup of a pod's container, as systemd names it."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        slices = f"/kubepods.slice/kubepods-pod{pod.replace('-', '_')}.slice/cri-containerd-{container}.scope"
        (folder / "cgroup").write_text(f"0::{slices}\n")

    def get(self, path: str = "/metrics", timeout_s: float = 30.0) -> tuple[str, str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.program.http.port}{path}", timeout=timeout_s) as answer:
            return answer.read().decode(), answer.headers["Content-Type"]

    def scrape(self) -> Scrape:
        return Scrape(self.get()[0])


class Scrape:
    """The text of one scrape, parsed by prometheus_client."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in self.families.values():
            for sample in family.samples:
                # The parser writes `_total` behind each counter, whether it stands in the text or not.
                names = {sample.name, family.name} if family.type == "counter" else {sample.name}
                for name in names:
                    self.samples.setdefault(name, []).append((sample.labels, sample.value))

    def values(self, name: str, **labels: str) -> list[float]:
        """Return the values of the series of a name that have these labels, and whatever others."""
        found = self.samples.get(name, [])
        return [value for have, value in found if labels.items() <= have.items()]

    def value(self, name: str, **labels: str) -> float:
        (value,) = self.values(name, **labels)
        return value

    def owners(self, name: str, **labels: str) -> list[str]:
        """Return who has the series of a name: namespace/pod/container, or `-`."""
        found = self.samples.get(name, [])
        return sorted(_owner(have) for have, _ in found if labels.items() <= have.items())


def _owner(labels: Mapping[str, str]) -> str:
    return "/".join(labels[key] for key in ("namespace", "pod", "container")) if "pod" in labels else "-"


@contextmanager
def exporting_node(
    folder: Path, count: int = 2, migs: Iterable[FakeMig] = (), *, clock: Clock | None = None, **settings: Any
) -> Iterator[ExportingNode]:
    """Give a node whose exporter serves. By default it waits long for a driver: the one here answers at once, in
    threads that a loaded machine holds up for longer than the 2 s after which a scrape is answered without."""
    node = ExportingNode(folder, ExportingNvml(machine_of(count), tuple(migs)), clock, **settings)
    node.program.start()
    try:
        yield node
    finally:
        node.program.stop()
