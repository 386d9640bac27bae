"""The embedded cluster: a Kubernetes API, stand-ins for its controllers and kubelets, and real Dracaena processes.

All of it lives in one folder and ends with the `with` block, however the block is left.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import urllib3
import yaml

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.pod_rewriting import rewritten
from dracaena.api.resource_objects import ResourceSlice
from dracaena.demo.apiserver import ApiServer
from dracaena.demo.apiserver.version import NEWEST
from dracaena.demo.kube_controller_manager import KubeControllerManager
from dracaena.demo.kube_scheduler import KubeScheduler
from dracaena.demo.kubelet import WIPE_AFTER_S, Kubelet, NodeFolders
from dracaena.demo.programs import Begin, ProgramProcess, begin_command
from dracaena.kube.client import KubeClient
from dracaena.kube.transport import Transport
from dracaena.process.clock import Clock, SystemClock

READY_TIMEOUT_S = 120.0
"""Time for all programs to start: about 5 s on two free cores, the rest is for a slow or loaded machine."""

POLL_S = 0.05
"""Pause between two checks while waiting: too short for a person to notice, long enough not to burden the API."""

SHORT_FOLDER = Path("/tmp")  # noqa: S108 - only the place of a fresh private folder
"""A unix socket path holds 107 bytes; the default temporary folder of some systems takes half of that."""


class ClusterError(DracaenaError):
    """The cluster did not reach the expected state; str() says what was seen instead."""


class StandIn(Protocol):
    """A part of the cluster that runs in threads of this process."""

    @property
    def failure(self) -> Exception | None:
        """The bug that ended it, if one did."""
        ...


@dataclass(frozen=True, slots=True)
class DemoNode:
    """A node of the cluster: its name, the recorded machine that its plugin plays, and the role of its GPUs."""

    name: str
    machine: str
    role: str = ""
    """What its GPUs are for; empty: whole."""


@contextmanager
def short_folder(*, kept_after_error: str = "") -> Iterator[Path]:
    """Make a private folder with a short path, and remove it with all its content at the end of the block.

    When the block ends with a DracaenaError, the folder `kept_after_error` inside it stays.
    """
    parent = SHORT_FOLDER if SHORT_FOLDER.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="dracaena-", dir=parent))
    kept = ""
    try:
        yield folder
    except DracaenaError:
        kept = kept_after_error
        raise
    finally:
        _remove(folder, but=kept)


def _remove(folder: Path, *, but: str) -> None:
    if not but or not (folder / but).is_dir():
        shutil.rmtree(folder)
        return
    for path in sorted(folder.iterdir()):
        if not path.is_dir():
            path.unlink()
        elif path.name != but:
            shutil.rmtree(path)


class DemoCluster:
    """A running cluster inside a `with` block.

    Its files are in `root`, which must be a short path, or in a folder of its own that is removed with the block.
    `controller` and `plugins[node]` are the real processes: they may be killed and started again. `kubelets[node]`,
    `scheduler` and `controller_manager` are stand-ins in this process.
    """

    def __init__(
        self,
        nodes: Sequence[DemoNode],
        *,
        root: Path | None = None,
        clock: Clock | None = None,
        wipe_after_s: float = WIPE_AFTER_S,
        dra_versions: Sequence[str] = ("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        kubernetes: str = NEWEST,
        begin: Begin = begin_command,
    ) -> None:
        self.nodes = tuple(nodes)
        self._clock = clock or SystemClock()
        self._root = root
        self._wipe_after_s = wipe_after_s
        self._dra_versions = tuple(dra_versions)
        self._kubernetes = kubernetes
        self._begin = begin
        self._cleanup = ExitStack()
        self._never = threading.Event()
        self.plugins: dict[str, ProgramProcess] = {}
        self.kubelets: dict[str, Kubelet] = {}
        self.folders: dict[str, NodeFolders] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    # start

    def _start(self) -> None:
        self.root = self._root or self._cleanup.enter_context(short_folder())
        (self.root / "logs").mkdir(exist_ok=True)
        server = self._cleanup.enter_context(ApiServer(version=self._kubernetes, policy=rewritten))
        self.url = server.url
        self.kubeconfig = self.root / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()), encoding="utf-8")
        self.client = self._connect("dracaena-demo")
        self._start_stand_ins()
        self._start_programs()
        self.wait_published()
        self.wait("the controller to see all nodes", self._unseen, READY_TIMEOUT_S)

    def _connect(self, user_agent: str) -> KubeClient:
        return KubeClient(Transport.from_kubeconfig(str(self.kubeconfig), user_agent=user_agent))

    def _start_stand_ins(self) -> None:
        self.controller_manager = KubeControllerManager(self._connect("kube-controller-manager"), self._clock)
        self.scheduler = KubeScheduler(self._connect("kube-scheduler"), self._clock)
        for stand_in in (self.controller_manager, self.scheduler):
            stand_in.start()
            self._cleanup.callback(stand_in.stop)
        for node in self.nodes:
            home = self.root / node.name
            self.folders[node.name] = NodeFolders(home / "kubelet", home / "cdi")
            self.start_kubelet(node.name)
        self._cleanup.callback(self._stop_kubelets)

    def start_kubelet(self, node_name: str) -> None:
        """Start the stand-in for kubelet on a node. After stop() on the old one, this is a restart of kubelet."""
        folders = self.folders[node_name]
        kubelet = Kubelet(
            self._connect("kubelet"),
            self._clock,
            node_name=node_name,
            folders=folders,
            versions=self._dra_versions,
            wipe_after_s=self._wipe_after_s,
        )
        kubelet.start()
        self.kubelets[node_name] = kubelet

    def _stop_kubelets(self) -> None:
        for kubelet in self.kubelets.values():
            kubelet.stop()

    def _start_programs(self) -> None:
        log = self.root / "logs"
        connection = ("--kubeconfig", str(self.kubeconfig), "--http-address", "127.0.0.1:0")
        self.controller = ProgramProcess(
            "controller",
            ("controller", *connection, "--leader-elect=false", "--page-address=127.0.0.1:0", "--page-open=true"),
            log / "controller.log",
            begin=self._begin,
        )
        for node in self.nodes:
            folders = self.folders[node.name]
            arguments = ("kubelet-plugin", *connection, "--node-name", node.name, "--machine", node.machine)
            places = ("--kubelet-root", str(folders.kubelet_root), "--cdi-root", str(folders.cdi_root))
            gpus = ("--gpus", f"[{{select: all, as: {node.role}}}]") if node.role else ()
            self.plugins[node.name] = ProgramProcess(
                f"plugin of {node.name}",
                (*arguments, *places, *gpus),
                log / f"plugin-{node.name}.log",
                begin=self._begin,
            )
        self._cleanup.callback(self._stop_programs)
        for program in self.programs:
            program.start()

    @property
    def programs(self) -> tuple[ProgramProcess, ...]:
        """All real processes, the controller first."""
        return (self.controller, *self.plugins.values())

    def page_url(self) -> str | None:
        """Return where the controller serves its page, as its log says; None before that."""
        whole_lines, _, _ = self.controller.log_path.read_text(encoding="utf-8").rpartition("\n")
        for line in reversed(whole_lines.splitlines()):
            if '"serving the page"' in line:
                return f"http://127.0.0.1:{json.loads(line)['port']}/"
        return None

    def _stop_programs(self) -> None:
        for program in self.programs:
            program.request_stop()
        for program in self.programs:
            program.stop()

    # waiting

    def check(self) -> None:
        """Raise if a stand-in failed by a bug of its own, or a started program has ended by itself."""
        stand_ins: tuple[StandIn, ...] = (self.controller_manager, self.scheduler, *self.kubelets.values())
        for stand_in in stand_ins:
            if stand_in.failure is not None:
                raise ClusterError(f"{type(stand_in).__name__} failed: {stand_in.failure!r}") from stand_in.failure
        for program in self.programs:
            program.check()

    def wait(self, what: str, missing: Callable[[], str | None], timeout_s: float) -> None:
        """Wait until `missing` returns None; it returns in words what is not yet as it should be.

        Raises ClusterError with what was missing last after timeout_s, or at once for the reasons of check().
        """
        deadline_s = self._clock.monotonic() + timeout_s
        while True:
            self.check()
            try:
                seen = missing()
            except TemporaryError as error:
                seen = str(error)
            if seen is None:
                return
            if self._clock.monotonic() >= deadline_s:
                raise ClusterError(f"waited {timeout_s:.0f} s for {what}; at the end: {seen}")
            self._clock.sleep_until_set(self._never, POLL_S)

    def wait_published(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every node has published complete pools of devices."""

        def missing() -> str | None:
            pages: dict[str, list[ResourceSlice]] = {node.name: [] for node in self.nodes}
            for item in self.client.list(ResourceSlice).items:
                pages.setdefault(item.spec.node_name, []).append(item)
            absent = [name for name, items in sorted(pages.items()) if not items or len(items) < _slice_count(items)]
            return f"no ResourceSlices of {', '.join(absent)}" if absent else None

        self.wait("every node to publish its devices", missing, timeout_s)

    def _unseen(self) -> str | None:
        """Return which nodes the controller's page does not have, None if it has all.

        The controller's watches bring what they show in any order: it may know a pod before it knows the last node, and
        would give the pod the best GPUs of those that it knows.
        """
        url = self.page_url()
        if url is None:
            return "it does not serve its page yet"
        try:
            answer = urllib3.request("GET", f"{url}api/fleet", retries=False, timeout=READY_TIMEOUT_S)
        except urllib3.exceptions.HTTPError as error:
            return f"its page does not answer: {error}"
        seen = {row[0] for row in answer.json()["nodes"]} if answer.status == HTTPStatus.OK else set()
        unseen = [node.name for node in self.nodes if node.name not in seen]
        return f"it does not know {', '.join(unseen)}" if unseen else None


def _slice_count(items: Sequence[ResourceSlice]) -> int:
    return max(item.spec.pool.resource_slice_count for item in items)
