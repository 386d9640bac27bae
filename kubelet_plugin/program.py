"""Runs the plugin: starts its parts in order, stops them in reverse order, and answers probes."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from typing import Final

import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from dracaena.api.errors import DracaenaError, PermanentError
from dracaena.host.adapters.files.lock import CallLock, FileLock
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.paths import plugin_paths
from dracaena.kube.client import KubeClient
from dracaena.kube.freshness import cache_trouble
from dracaena.kube.transport import Transport
from dracaena.kubelet_plugin.adapters.kubelet.probes import ProbeServer, socket_problem
from dracaena.kubelet_plugin.node.section import NodeSection
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.kubelet_plugin.upkeep.stale_files import remove_stale_files
from dracaena.kubelet_plugin.wiring.build import Source, build_parts
from dracaena.kubelet_plugin.wiring.from_settings import USER_AGENT, node_view
from dracaena.kubelet_plugin.wiring.parts import Service
from dracaena.process.clock import Clock, SystemClock
from dracaena.process.ending import end_this_process, hold_end_signals, wait_for_end_signal
from dracaena.process.garbage import leave_out_what_was_loaded
from dracaena.process.http import HttpEndpoint
from dracaena.process.logs import configure_logs
from dracaena.process.settings import Layers

SWITCH_S = 0.0005
"""Longest that a thread in Python code keeps the others waiting, instead of 5 ms: a prepare stops at some twenty file
operations, and after each it may have to wait that long for a thread that follows pods or writes annotations."""

LOCK_TRIES: Final = 3
LOCK_PAUSE_S: Final = 0.02
"""A process that checks whether a lock is held holds it for some microseconds."""

log = structlog.get_logger()


class Program:
    """One instance of the plugin. start() once, stop() once.

    Raises DracaenaError if it cannot start: a bad setting, no connection settings, or the same instance running.
    start() does not wait for the GPU driver: until the driver has reported the node's GPUs, kubelet is served (claims
    of an earlier run can be answered and unprepared) and new claims are refused for the time being. Nothing is
    published before that, nor before kubelet has registered the plugin.
    """

    def __init__(
        self,
        settings: PluginSettings,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
        source: Source | None = None,
        section: NodeSection | None = None,
        sys_root: str = "/sys",
    ) -> None:
        """`source` builds the replacement for NVML; it is not used if the settings name a recorded machine. `section`
        is where the settings came from, None if they do not depend on a label. The version of the kernel module is read
        below `sys_root`.
        """
        self._settings = settings
        self._registry = registry
        self._clock = clock or SystemClock()
        self._never = threading.Event()
        self._running = ExitStack()
        self._parts = build_parts(settings, self._clock, registry, source, section, sys_root)
        self._node, self._gpus, self._claims = self._parts.node, self._parts.gpus, self._parts.claims
        self._instance_lock = FileLock(self._node.paths.instance_lock)
        self._written = self._node.folders.written(settings.driver_name)
        self.http: HttpEndpoint | None = None
        """Health and metrics; None: off, or not started yet."""
        self.probes = self._build_probes(settings.grpc_health_address)

    def start(self) -> None:
        """Start everything, last what kubelet calls and what tells kubelet to call it."""
        self._take_place()
        self._running.callback(self._instance_lock.release)
        try:
            self._start_parts()
        except DracaenaError:
            self.stop()
            raise

    def _take_place(self) -> None:
        """Take the instance lock and remove what dead instances left; under the call lock, so that no two do it."""
        with self._node.claims.hold():
            if not self._acquire_instance_lock():
                raise PermanentError(
                    "this instance of the plugin is already running: another process holds "
                    f"{self._node.paths.instance_lock}. Stop it first, or give this one its own --pod-uid"
                )
            try:
                remove_stale_files(
                    self._node.paths, self._settings.kubelet_root, self._settings.driver_name, self._written
                )
            except DracaenaError:
                self._instance_lock.release()
                raise

    def _acquire_instance_lock(self) -> bool:
        """Acquire it, even while another instance checks whether it is held (adapters.files.writer_lock)."""
        for _ in range(LOCK_TRIES):
            if self._instance_lock.try_acquire():
                return True
            self._clock.sleep_until_set(self._never, LOCK_PAUSE_S)
        return False

    def _start_parts(self) -> None:
        self._start_probes()
        self._claims.recovery.enter_boot()
        for service in self._parts.services():
            self._run(service)
        log.info("serving kubelet", socket=str(self._node.paths.dra_socket))
        self._try_folders()
        self._find_gpu_driver()

    def _start_probes(self) -> None:
        if self._settings.http_address:
            # Bound only under the instance lock, so that a second start complains about the first instance, not a port.
            self.http = HttpEndpoint(
                self._settings.http_address,
                self.ready,
                self._registry,
                state=self._words,
                alive=self.alive,
                web_config_file=self._settings.web_config_file,
            )
            self._run(self.http)
            log.info("serving health and metrics", port=self.http.port)
        if self.probes is not None:
            self._run(self.probes)

    def _run(self, service: Service) -> None:
        self._running.callback(service.stop)
        service.start()

    def stop(self) -> None:
        """Stop what was started, in reverse order. Slices, CDI specs and checkpoints stay: pods keep running."""
        self._running.close()

    def ready(self) -> str | None:
        """Return None if kubelet and scheduling can rely on this node, otherwise what is missing."""
        caches = (
            self._gpus.slices,
            self._claims.pods,
            self._node.cache,
        )  # the Node's labels decide whether the driver is released
        return self._waiting_for() or self._gpus.publisher.ready() or self._hangs() or cache_trouble(caches)

    def _hangs(self) -> str | None:
        """Return what hangs in or below this process: the driver, or a call that holds the lock."""
        return (self._gpus.live.hung() if self._gpus.live is not None else None) or self._node.call_lock.stuck()

    def _words(self) -> str:
        """Return what /readyz says of a plugin that is ready."""
        troubles = self._node.troubles.words()
        return "ok" if troubles is None else f"ok, and an admin should look: {troubles}"

    def alive(self) -> str | None:
        """Return None while kubelet can call this process, otherwise the fault that a restart would fix: a socket that
        does not answer, or a call that hangs, but not one that hangs in the kernel.
        """
        return (
            socket_problem(self._node.paths.dra_socket, self._node.paths.registration_socket)
            or (self._gpus.live.needs_restart() if self._gpus.live is not None else None)
            or self._node.call_lock.needs_restart()
        )

    def _build_probes(self, address: str) -> ProbeServer | None:
        if not address:
            return None
        return ProbeServer(address, {"": self.alive, "liveness": self.alive, "readiness": self.ready})

    def _waiting_for(self) -> str | None:
        """Return what the first reading of the GPUs waits for, None once there is one."""
        return self._gpus.live.ready() if self._gpus.live is not None else None

    def _try_folders(self) -> None:
        """Report folders that are not writable now, without waiting for the first claim to fail on them.

        That is no reason to exit: what was prepared before can be unprepared, and failing claims say the same.
        """
        folders = {
            files.folder: (files, prefix) for files, prefix in self._written if isinstance(files, DocumentFolder)
        }
        for files, prefix in folders.values():
            try:
                files.try_to_write(prefix)
            except DracaenaError as error:
                log.error("claims cannot be prepared here", error=str(error))
                self._node.events.on_node("Warning", "FolderNotWritable", f"claims cannot be prepared here: {error}")

    def _find_gpu_driver(self) -> None:
        """Look for the driver's files now, so that what containers will lack is reported without a claim."""
        if self._node.installation is None:
            return
        try:
            self._node.installation.edits()
        except DracaenaError as error:
            log.info("the driver is not there yet", error=str(error))  # claims report it while it lasts


def run(layers: Layers[PluginSettings]) -> int:
    """Run until SIGTERM or SIGINT and return the exit code. Raises DracaenaError if it cannot start."""
    settings, section = layers.resolve(), None
    hold_end_signals()
    configure_logs(settings.log_level, settings.log_format)
    if layers.has_file:
        section = _section(layers, settings)
        settings = section.choose()
        configure_logs(settings.log_level, settings.log_format)
    run_to_the_end(Program(settings, section=section))
    return 0


def run_to_the_end(program: Program) -> None:
    """Start a program and run it until SIGTERM or SIGINT, which hold_end_signals() must have blocked before."""
    program.start()
    _let_calls_go_first()
    log.info("stopping", signal=wait_for_end_signal().name)
    program.stop()


def _let_calls_go_first() -> None:
    """Keep other work of this process from delaying kubelet's calls, which take a few milliseconds."""
    sys.setswitchinterval(SWITCH_S)
    leave_out_what_was_loaded()


def _section(layers: Layers[PluginSettings], general: PluginSettings) -> NodeSection:
    clock = SystemClock()
    paths = plugin_paths(general.kubelet_root, general.driver_name, general.pod_uid)
    client = KubeClient(Transport.from_kubeconfig(general.kubeconfig or None, user_agent=USER_AGENT))
    client = node_view(general, client)
    lock, files = CallLock(paths.call_lock, clock), DocumentFolder(paths.instance_lock.parent)
    return NodeSection(layers, client, files, lock, clock, end=end_this_process)
