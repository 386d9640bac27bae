"""Runs the exporter: an endpoint, a thread for the GPU driver, and one that closes the driver on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from dracaena.api.errors import BadInputError, DracaenaError
from dracaena.exporter.adapters.pci_driver_links import PciDriverLinks
from dracaena.exporter.adapters.podlist_file import PodlistFile
from dracaena.exporter.adapters.process_cgroups import ProcessCgroups
from dracaena.exporter.collector import NodeCollector, NvmlErrorCounts, Shown
from dracaena.exporter.ports import DeviceSource
from dracaena.exporter.series.display import tree_text, usage_json
from dracaena.exporter.series.families import CONTENT_TYPE, render
from dracaena.exporter.series.field_file import ChosenFields, default_fields, read_field_file
from dracaena.exporter.settings import ExporterSettings
from dracaena.exporter.side_by_side import side_by_side
from dracaena.host.gpu_driver.permission import GpuDriverPermission, permission_on_this_node
from dracaena.host.gpu_driver.thread import GpuDriverThread
from dracaena.process.clock import Clock, SystemClock
from dracaena.process.ending import hold_end_signals, wait_for_end_signal
from dracaena.process.garbage import leave_out_what_was_loaded
from dracaena.process.http import HttpEndpoint
from dracaena.process.http_message import HttpAnswer
from dracaena.process.logs import configure_logs

LOOK_S = 1.0
"""Pause between checks whether somebody wants the driver released: within two seconds, like the plugin."""

DEADLINE_S = 2.0
"""For which a scrape waits for the GPU driver before it is answered without it: Prometheus gives a scrape 10 s."""

UNUSED_S = 300.0
"""Without a scrape for this long the driver is closed, so that a forgotten exporter blocks nobody."""

MOST_FIELD_BYTES = 1 << 20
"""The file comes from a ConfigMap, which holds no more."""

log = structlog.get_logger()

MakeSource = Callable[[GpuDriverPermission | None, NvmlErrorCounts], DeviceSource]


class ExporterProgram:
    """One exporter. start() once, stop() once. Raises BadInputError for a setting that cannot be used."""

    def __init__(
        self,
        settings: ExporterSettings,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
        source: MakeSource | None = None,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`source` replaces NVML, `deadline_s` DEADLINE_S."""
        self._clock = clock or SystemClock()
        self._registry = registry
        self._deadline_s, self._node_name = deadline_s, settings.node_name
        chosen = _chosen_fields(settings.collectors)
        errors = NvmlErrorCounts()
        self._permission = permission_on_this_node(settings.kubelet_root, settings.driver_name)
        make = source or _nvml(settings.driver_root_mount)
        self._source = make(self._permission, errors)
        self._gpu_driver = GpuDriverThread(self._clock, self._source.doing, self._source.close)
        self._collector = NodeCollector(
            self._source,
            PodlistFile(Path(settings.kubelet_root) / "pod-resources"),
            ProcessCgroups(proc_root),
            Shown(chosen, settings.node_name, settings.idle_after_s),
            call=lambda work: self._gpu_driver.call("reading of all GPUs", work, self._deadline_s),
            clock=self._clock,
            errors=errors,
            in_vfio=PciDriverLinks(sys_root).has_vfio,
        )
        self.http = HttpEndpoint(
            settings.http_address, lambda: None, registry,
            web_config_file=settings.web_config_file,
            pages={"/metrics": self._metrics, "/graph": self._graph, "/usage": self._usage},
        )  # fmt: skip
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._let_go_when_asked, name="driver-use", daemon=True)

    def start(self) -> None:
        """Serve."""
        self._gpu_driver.start()
        self._keeper.start()
        self.http.start()
        log.info("serving metrics", port=self.http.port)

    def stop(self) -> None:
        """Close the port and the driver."""
        self._stopping.set()
        self.http.stop()
        self._gpu_driver.stop()

    def _metrics(self) -> HttpAnswer:
        body = render(self._collector.collect()) + generate_latest(self._registry)
        return HttpAnswer(200, body, CONTENT_TYPE)

    def _graph(self) -> HttpAnswer:
        return HttpAnswer(200, tree_text(self._collector.view().shown, self._node_name).encode("utf-8", "replace"))

    def _usage(self) -> HttpAnswer:
        view = self._collector.view()
        body = usage_json(view.shown, self._node_name, owners_known=not view.look.error)
        return HttpAnswer(200, body, "application/json")

    def _let_go_when_asked(self) -> None:
        while not self._clock.sleep_until_set(self._stopping, LOOK_S):
            asked = self._permission is not None and self._permission.refusal() is not None
            unused = self._clock.monotonic() - self._collector.scraped_s > UNUSED_S
            if not asked and not unused:
                continue
            try:
                self._gpu_driver.call("letting go", self._source.close, self._deadline_s)
            except DracaenaError as error:
                log.warning("the GPU driver cannot be closed", error=str(error))


def _chosen_fields(path: str) -> ChosenFields:
    if not path:
        return default_fields()
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_FIELD_BYTES + 1)
    except OSError as error:
        raise BadInputError(f"field file {path}: {error.strerror}") from error
    if len(data) > MOST_FIELD_BYTES:
        raise BadInputError(f"field file {path} has more than {MOST_FIELD_BYTES >> 20} MiB")
    chosen = read_field_file(data)
    for fault in chosen.faults:
        log.warning("a line of the field file has no effect", file=path, line=fault)
    return chosen


def _nvml(driver_root: str) -> MakeSource:
    def make(permission: GpuDriverPermission | None, errors: NvmlErrorCounts) -> DeviceSource:
        from dracaena.exporter.adapters.nvml_devices import NvmlDevices
        from dracaena.host.adapters.nvml.library import NvmlLibrary, load_library

        library = NvmlLibrary(lambda: load_library(driver_root), errors.note, permission)
        return NvmlDevices(library, spread=side_by_side)

    return make


def run(settings: ExporterSettings) -> int:
    """Run until SIGTERM or SIGINT and return the exit code. Raises DracaenaError if it cannot start."""
    hold_end_signals()
    configure_logs(settings.log_level, settings.log_format)
    program = ExporterProgram(settings)
    program.start()
    leave_out_what_was_loaded()
    log.info("stopping", signal=wait_for_end_signal().name)
    program.stop()
    return 0
