"""A whole plugin on NVML: a fake library under the real pynvml, a driver root on disk, an API server.

Time is the test's: it stands still while the driver is asked, or a slow machine would look like a driver that hangs.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from dracaena.api.machine import Machine
from dracaena.api.names import gpu_device_name, taint_key
from dracaena.host.adapters.nvml.library import GpuDriverNotReadyError, NvmlLibrary, Permission
from dracaena.host.facts.troubles import TroubleKind
from dracaena.host.gpu_driver.thread import GpuDriverThread
from dracaena.kubelet_plugin.adapters.gpu_driver.device_nodes import DeviceNodes, DevRoot, MakeNode
from dracaena.kubelet_plugin.adapters.kernel.mig_access import MigAccess
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.machine import GuestBuses, NvmlMachine
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.adapters.sysfs.vgpu import SysfsVgpu
from dracaena.kubelet_plugin.discovery.gpu_list import GpuRole
from dracaena.kubelet_plugin.prepare.cdi.hooks import COMMANDS
from dracaena.kubelet_plugin.program import Program
from support.api_ground import ApiGround, let_pass
from support.clock import FakeClock
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import FakeMig
from support.fake_sysfs import write_machine
from support.gpu_driver_root import PROC_DEVICES, look_at_text, put, put_gpu_driver, put_nodes
from support.kube import wait_for
from support.plugin_world import DRIVER, MACHINE, NODE, World
from support.sockets import short_folder
from support.topologies import topology_from_matrix

RECORDED = read_machine(MACHINE)
NAMES = [gpu_device_name(gpu.uuid) for gpu in RECORDED.gpus]
MIG = FakeMig(0, 0, "MIG-00000000-0000-4000-8000-000000000001", "NVIDIA MIG 1g.5gb", gpu_instance=7, start=4)

STOP_S = 30.0
"""For a call that hung to return, on a loaded machine."""


@contextmanager
def nvml_world(server: ApiGround) -> Iterator[World]:
    """Give the folders of a node on which the recorded machine's driver is installed, and no GPU is touched yet."""
    with short_folder() as folder, nvml_host(folder, RECORDED):
        yield World(server, folder)


@contextmanager
def nvml_host(folder: Path, machine: Machine) -> Iterator[None]:
    """Install a machine's driver below a folder's `host`, `sys` and `proc`; plugins of this process look there."""
    write_machine(folder / "sys", machine)
    put_gpu_driver(folder / "host")
    put_nodes(folder / "host", (gpu.minor for gpu in machine.gpus if gpu.minor is not None))
    put(folder, "host/usr/bin/nvidia-cdi-hook", " ".join(COMMANDS).encode()).chmod(0o755)
    put(folder, "proc/devices", PROC_DEVICES.encode())

    def nodes(roots: Sequence[DevRoot], *, required: bool, make: MakeNode) -> DeviceNodes:
        del make  # the nodes are files here
        proc, sys = str(folder / "proc"), str(folder / "sys")
        host = DevRoot(str(folder / "host"), "/")
        return DeviceNodes(roots, required=required, host=host, proc=proc, sys=sys, look=look_at_text)

    with patch("dracaena.kubelet_plugin.wiring.from_settings.DeviceNodes", nodes):
        yield


@contextmanager
def nvml_node(world: World, **changes: Any) -> Iterator[NvmlNode]:
    """Give a plugin that is not started, and stop it at the end. `changes`: of its settings."""
    made = NvmlNode(world, **changes)
    try:
        yield made
    finally:
        made.stop()


class NvmlNode:
    """A plugin whose driver is a fake; without `nvml` the driver is not there yet."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        self.nvml: FakeNvml | None = FakeNvml(RECORDED)
        self.clock = FakeClock()
        self.settings = world.settings(machine="", **changes)
        self.program = Program(
            self.settings,
            clock=self.clock,
            registry=CollectorRegistry(),
            source=self._source,
            sys_root=str(world.folder / "sys"),
        )

    def _source(self, permission: Permission) -> NvmlMachine:
        gpus = self.settings.gpus
        self.source = NvmlMachine(
            NODE,
            NvmlReader(
                NvmlLibrary(self._library, permission=permission), mig_profiles=gpus.has(GpuRole.MIG, GpuRole.LAYOUT)
            ),
            Sysfs(str(self.world.folder / "sys")),
            MigAccess(str(self.world.folder / "proc")),
            self.clock,
            listens=True,
            gpu_list=gpus,
            guests=GuestBuses(
                SysfsPci(str(self.world.folder / "sys")) if gpus.has(GpuRole.PASSTHROUGH) else None,
                SysfsVgpu(str(self.world.folder / "sys")) if gpus.has(GpuRole.VGPU) else None,
            ),
        )
        return self.source

    def _library(self) -> object:
        if self.nvml is None:
            raise GpuDriverNotReadyError(
                "waiting for the NVIDIA driver: no library", reason=TroubleKind.LIBRARY_MISSING
            )
        return self.nvml

    def stop(self) -> None:
        """Stop the plugin, and wait for a call that it left behind: NVML, of which a process has one, is closed once
        that returns, and may be the next test's by then.
        """
        self.program.stop()
        for each in threading.enumerate():
            if each is self._gpu_driver()._thread:
                each.join(STOP_S)

    def until(
        self,
        condition: Callable[[], Any],
        what: str,
        step_s: float | None = None,
        *,
        hanging: bool = False,
        timeout_s: float = 30.0,
    ) -> Any:
        """Look for a condition while the plugin's time goes by, and with it the server's: a tenth of `step_s` at each
        look, by default as much as really goes by or a little more, so that a watch that has to be begun again is,
        however rarely we look.
        """
        looked_s = time.monotonic()

        def look() -> Any:
            nonlocal looked_s
            gone_by_s, looked_s = time.monotonic() - looked_s, time.monotonic()
            if hanging or not self._is_asked():
                passed_s = max(0.01, gone_by_s) if step_s is None else step_s / 10
                self.clock.advance(passed_s)
                let_pass(self.world.server, max(0.0, passed_s - gone_by_s))
            return condition()

        return wait_for(look, what, timeout_s)

    def _is_asked(self) -> bool:
        """Whether the driver's thread has something to do, until it is done: also between two calls of NVML."""
        return self._gpu_driver().hung(-math.inf) is not None

    def _gpu_driver(self) -> GpuDriverThread:
        live = self.program._gpus.live
        assert live is not None
        return live._gpu_driver

    def devices(self) -> list[str]:
        return [device.name for s in self.world.slices() for device in s.spec.devices]

    def ready(self) -> None:
        self.world.register()
        self.until(lambda: self.program.ready() is None, "ready")

    def spec(self, claim: Any) -> dict[str, Any]:
        document = json.loads(self.world.spec_text(claim))
        assert isinstance(document, dict)
        return document


def taints(node: NvmlNode) -> dict[str, list[tuple[str, str, str]]]:
    """Return what is published on each device beside the taint that all have."""
    return {
        device.name: [
            (taint.key.removeprefix(f"{DRIVER}/"), taint.value, taint.effect)
            for taint in device.taints
            if taint.key != taint_key(DRIVER)
        ]
        for s in node.world.slices()
        for device in s.spec.devices
    }


def times(node: NvmlNode) -> dict[tuple[str, str], str | None]:
    return {
        (device.name, taint.key): taint.time_added
        for s in node.world.slices()
        for device in s.spec.devices
        for taint in device.taints
    }


def node_events(node: NvmlNode) -> list[str]:
    return sorted(event.reason for event in node.world.events())


def without_last_gpu(machine: Machine) -> Machine:
    gpus = machine.gpus[:-1]
    return replace(
        machine,
        gpus=gpus,
        topology=topology_from_matrix([["X" if a == b else "SYS" for b in range(len(gpus))] for a in range(len(gpus))]),
    )
