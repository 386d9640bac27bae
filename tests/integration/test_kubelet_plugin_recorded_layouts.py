"""MIG layouts on a recorded machine: the whole plugin, and files in place of a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.mig import mig_device_name
from dracaena.api.names import gpu_device_name
from dracaena.cli.main import main
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.discovery.gpu_list import read_gpus
from dracaena.kubelet_plugin.program import Program
from support.api_ground import ApiGround, let_pass
from support.clock import FakeClock
from support.gpu_lists import entry
from support.kube import wait_for
from support.node_layouts import choose, layout_condition
from support.plugin_world import World
from support.sockets import short_folder

GPU = read_machine("h100-x1").gpus[0].uuid
FILE = """
version: v1
mig-configs:
  whole:
    - {devices: all, mig-enabled: false}
  sevenths:
    - {devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}
  mixed:
    - {devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 1, "3g.40gb": 1}}
  by-product:
    - {devices: all, device-filter: "0x233010DE", mig-enabled: true, mig-devices: {"7g.80gb": 1}}
"""


class RecordedNodeWorld:
    """One node that plays a recorded H100; time is the test's."""

    def __init__(self, world: World) -> None:
        self.world = world
        (world.folder / "layouts.yaml").write_text(FILE, encoding="utf-8")

    @contextmanager
    def running(self, **changes: Any) -> Iterator[None]:
        """Run one process of the plugin."""
        self.clock = FakeClock()
        file = str(self.world.folder / "layouts.yaml")
        given = {"gpus": read_gpus([entry("layout", file=file, condition=True)]), **changes}
        settings = self.world.settings(machine="h100-x1", driver_root="", **given)
        program = Program(settings, clock=self.clock, registry=CollectorRegistry())
        program.start()
        try:
            self.world.register()
            self.until(lambda: program.ready() is None, "ready", 0.01)
            yield
        finally:
            program.stop()

    def until(self, condition: Callable[[], bool], what: str, step_s: float = 1.0) -> None:
        """Look for a condition, and let so much time go by at each look: a layout waits for half a minute. What has to
        be fresh, as all that makes a plugin ready, is not where time goes by much faster than it does.
        """

        def look() -> bool:
            self.clock.advance(step_s)
            let_pass(self.world.server, step_s)
            return condition()

        wait_for(look, what, timeout_s=60)

    def until_told(self, words: str) -> None:
        self.until(lambda: words in layout_condition(self.world), words)

    def until_free(self, *names: str) -> None:
        """Wait until exactly these devices are published, without the taint of a change."""
        self.until(lambda: self.published() == dict.fromkeys(names, False), f"{names} are published")

    def published(self) -> dict[str, bool]:
        """Return the devices, and whether each is withheld."""
        devices = [device for each in self.world.slices() for device in each.spec.devices]
        return {each.name: any("mig-layout" in taint.key for taint in each.taints) for each in devices}


@pytest.fixture
def node(server: ApiGround) -> Iterator[RecordedNodeWorld]:
    with short_folder() as folder:
        yield RecordedNodeWorld(World(server, folder))


def parts(profile: str, *starts: int) -> list[str]:
    return [mig_device_name(GPU, profile, start) for start in starts]


def test_a_recorded_gpu_gets_its_layout_and_keeps_it_and_what_is_held_over_a_restart(
    node: RecordedNodeWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    sevenths = parts("1g.10gb", *range(7))
    choose(node.world, "sevenths")
    with node.running():
        node.until_told("True Applied MIG layout sevenths: all GPUs have it")
        node.until_free(*sevenths)
        claim = node.world.allocated_claim("claim", [], devices=parts("1g.10gb", 3))
        answer = node.world.prepare(claim)[claim.metadata.uid]
        assert answer.error == ""
        assert "/dev/nvidia-caps/nvidia-cap" in node.world.spec_text(claim)
        choose(node.world, "mixed")
        node.until_told("False Pending MIG layout mixed: claim default/claim")
        capsys.readouterr()
        assert main(["status", "--kubeconfig", str(node.world.folder / "kubeconfig")]) == 0
        assert "  MigLayoutPending: MIG layout mixed: claim default/claim (UID" in capsys.readouterr().out
    with node.running():
        node.until_told("False Pending MIG layout mixed: claim default/claim")
        assert node.published() == dict.fromkeys(sevenths, True)
        assert node.world.prepare(claim)[claim.metadata.uid] == answer
        assert node.world.unprepare(claim) == {claim.metadata.uid: ""}
        node.until_told("True Applied MIG layout mixed")
        node.until_free(*parts("1g.10gb", 4), *parts("3g.40gb", 0))
        choose(node.world, "whole")
        node.until_told("True Applied MIG layout whole")
        node.until_free(gpu_device_name(GPU))


def test_a_layout_that_asks_for_pci_ids_says_that_recordings_have_none(node: RecordedNodeWorld) -> None:
    choose(node.world, "by-product")
    with node.running():
        node.until_told("False Failed MIG layout by-product: it is not known what GPUs these are: recorded GPU")
        assert "choose a layout without device-filter" in layout_condition(node.world)
        node.until_free(gpu_device_name(GPU))


def test_faults_of_a_recorded_machine_reach_the_parts_of_its_gpus(node: RecordedNodeWorld) -> None:
    faults = node.world.folder / "faults.json"
    choose(node.world, "sevenths")
    with node.running(faults=str(faults)):
        node.until_free(*parts("1g.10gb", *range(7)))
        faults.write_text(f'{{"{GPU}": {{"xids": [79]}}}}', encoding="utf-8")

        def all_are_broken() -> bool:
            devices = [device for each in node.world.slices() for device in each.spec.devices]
            return bool(devices) and all(len(device.taints) > 1 for device in devices)

        node.until(all_are_broken, "a taint on each part")
