"""One driver under measurement: a process, called as kubelet calls it, and what the kernel says that it uses."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from bench.node.ground import DRIVER, NAMESPACE, NODE, Claim, device_names
from dracaena.proto.dra.v1 import api_pb2 as v1
from dracaena.proto.dra.v1 import api_pb2_grpc as v1_grpc
from dracaena.proto.health.v1alpha1 import api_pb2 as health
from dracaena.proto.health.v1alpha1 import api_pb2_grpc as health_grpc
from dracaena.proto.pluginregistration.v1 import api_pb2 as registration
from dracaena.proto.pluginregistration.v1 import api_pb2_grpc as registration_grpc

CALL_S = 45.0
"""kubelet's own limit of a call."""

START_S = 60.0
STOP_S = 20.0
LOOK_S = 0.005
"""Between two looks whether a driver is ready: fine enough beside a start of half a second."""

GRPC_POOL = "event_engine"
"""Threads of gRPC's C core, whose number follows the load of the machine: not ours to lose."""

_KIB = 1024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process uses at a moment."""

    rss_bytes: int
    pss_bytes: int
    cpu_s: float
    descriptors: int
    threads: int
    """Without those of GRPC_POOL."""


class NotReadyError(Exception):
    """The driver did not come up; str() says what it printed."""


class NodeDriver:
    """A driver process with folders of its own below `folder`, inside a `with` block ready and registered.

    `ready` is asked beside the registration; `started_s` is then how long it took, from the start of the process.
    """

    name = ""
    port: int | None = None

    def __init__(self, folder: Path, kubeconfig: Path, machine: str) -> None:
        folder.mkdir(parents=True)
        self.kubelet_root = folder / "k"
        self.cdi_root = folder / "cdi"
        self.folder = folder
        self.devices = device_names(machine)
        self.started_s = 0.0
        self._kubeconfig = kubeconfig
        self._machine = machine
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None

    def command(self) -> Sequence[str]:
        """Return the command line."""
        raise NotImplementedError

    def start(self, published: Callable[[], int]) -> Self:
        """Start it, register it as kubelet does, and wait until `published` devices are all of this machine's."""
        began_s = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        registry = self.kubelet_root / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._await(registry.is_socket, "its registration socket")
        with grpc.insecure_channel(f"unix:{registry}") as channel:
            kubelet = registration_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]  # generated
            info = kubelet.GetInfo(registration.InfoRequest(), timeout=CALL_S, wait_for_ready=True)
            kubelet.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True), timeout=CALL_S)
        self._await(lambda: published() == len(self.devices), "its ResourceSlices")
        self._await(self.is_ready, "its readiness")
        self.started_s = time.monotonic() - began_s
        self._channel = grpc.insecure_channel(f"unix:{info.endpoint}")
        stub = v1_grpc.DRAPluginStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self._prepare, self._unprepare = stub.NodePrepareResources, stub.NodeUnprepareResources
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it with SIGTERM."""
        if self._channel is not None:
            self._channel.close()
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def is_ready(self) -> bool:
        """Whether it says so by itself, where it has a way to."""
        return True

    def prepare(self, claim: Claim) -> float:
        """Prepare one claim and return how long it took, in seconds. A claim that fails ends the bench."""
        request = v1.NodePrepareResourcesRequest(claims=[_message(claim)])
        began_s = time.perf_counter()
        answer = self._prepare(request, timeout=CALL_S)
        took_s = time.perf_counter() - began_s
        if answer.claims[claim.uid].error or not answer.claims[claim.uid].devices:
            raise NotReadyError(f"{self.name}: {claim.name}: {answer.claims[claim.uid].error or 'no devices'}")
        return took_s

    def unprepare(self, claim: Claim) -> float:
        """Unprepare one claim and return how long it took, in seconds."""
        request = v1.NodeUnprepareResourcesRequest(claims=[_message(claim)])
        began_s = time.perf_counter()
        answer = self._unprepare(request, timeout=CALL_S)
        took_s = time.perf_counter() - began_s
        if answer.claims[claim.uid].error:
            raise NotReadyError(f"{self.name}: {claim.name}: {answer.claims[claim.uid].error}")
        return took_s

    def watch_health(self) -> Callable[[], None]:
        """Keep the health stream open as kubelet does; return what closes it."""
        assert self._channel is not None
        stub = health_grpc.DRAResourceHealthStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        stream = stub.NodeWatchResources(health.NodeWatchResourcesRequest())

        def read() -> None:
            try:
                for _ in stream:
                    pass
            except grpc.RpcError:
                return  # closed

        threading.Thread(target=read, daemon=True).start()
        return stream.cancel  # type: ignore[no-any-return]

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def usage(self) -> Usage:
        """Return what the process uses now."""
        return usage_of(self.pid)

    def files(self) -> frozenset[str]:
        """Return all files below its folders but its log."""
        return frozenset(str(path) for path in self.folder.rglob("*") if path != self._log)

    def _await(self, look: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + START_S
        assert self._process is not None
        while not look():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])
                raise NotReadyError(f"{self.name}: {what} did not come within {START_S:.0f} s:\n{tail}")
            time.sleep(LOOK_S)


class Dracaena(NodeDriver):
    """Our plugin, as it runs on a node: health watched, logs as by default, metrics on."""

    name = "dracaena"

    def command(self) -> Sequence[str]:
        """Return the command line."""
        return (
            *(sys.executable, "-P", "-m", "dracaena.cli.main", "kubelet-plugin"),
            f"--node-name={NODE}",
            f"--machine={self._machine}",
            f"--faults={self.folder / 'faults.json'}",  # not there: all GPUs are well, and watched
            f"--kubeconfig={self._kubeconfig}",
            f"--kubelet-root={self.kubelet_root}",
            f"--cdi-root={self.cdi_root}",
            f"--dev-root={self.folder / 'host'}",
            f"--http-address={self.take_address()}",
        )

    def take_address(self) -> str:
        """Return a free address for its HTTP endpoint, which is asked there from then on."""
        self.port = _free_port()
        return f"127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        """Whether it says so by itself."""
        try:
            return self.get("/readyz").startswith("ok")
        except OSError:
            return False

    def get(self, path: str) -> str:
        """Ask its HTTP endpoint, as a probe or a scraper does."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=CALL_S) as answer:
            return str(answer.read().decode())


class Reference(NodeDriver):
    """The trivial driver on the Go library."""

    name = "Go library"

    def __init__(self, folder: Path, kubeconfig: Path, machine: str, binary: Path) -> None:
        super().__init__(folder, kubeconfig, machine)
        self._binary = binary

    def command(self) -> Sequence[str]:
        """Return the command line."""
        return (
            str(self._binary),
            f"--node-name={NODE}",
            f"--devices={','.join(self.devices)}",
            f"--kubeconfig={self._kubeconfig}",
            f"--kubelet-root={self.kubelet_root}",
            f"--cdi-root={self.cdi_root}",
        )


def usage_of(pid: int) -> Usage:
    """Return what a process uses now."""
    proc = Path("/proc") / str(pid)
    memory = dict(
        line.split(":", 1)
        for line in (proc / "smaps_rollup").read_text().splitlines()
        if line.startswith(("Rss", "Pss:"))
    )
    stat = (proc / "stat").read_text().rpartition(")")[2].split()  # proc(5): field 3 comes first here
    return Usage(
        rss_bytes=int(memory["Rss"].split()[0]) * _KIB,
        pss_bytes=int(memory["Pss"].split()[0]) * _KIB,
        cpu_s=(int(stat[11]) + int(stat[12])) / _TICKS_PER_S,
        descriptors=sum(1 for _ in (proc / "fd").iterdir()),
        threads=sum(1 for name in _threads(proc) if name != GRPC_POOL),
    )


def _threads(proc: Path) -> Iterator[str]:
    """Return the name of each thread of a process; one that ends meanwhile is left out."""
    for thread in (proc / "task").iterdir():
        with contextlib.suppress(OSError):
            yield (thread / "comm").read_text().strip()


def _message(claim: Claim) -> v1.Claim:
    return v1.Claim(namespace=NAMESPACE, name=claim.name, uid=claim.uid)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
