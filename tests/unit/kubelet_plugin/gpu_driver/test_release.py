"""Who may ask that the driver be let go of, and that NVML is closed then and stays closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.host.adapters.gpu_driver.use import GpuDriverUse, request_release, wait_until_let_go, withdraw
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.host.facts.troubles import GpuDriverReleasedError
from dracaena.kubelet_plugin.adapters.nvml.health import NvmlHealth
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.discovery.health.gpu_health import HealthClass
from dracaena.kubelet_plugin.gpu_driver.release import GpuDriverRelease
from support.clock import FakeClock
from support.fake_nvml import FakeNvml

DRIVER = "gpu.dracaena.dev"


class Node:
    """A driver and who holds it."""

    def __init__(self, folder: Path) -> None:
        self.lock, self.request = folder / "lock", folder / "request"
        self.release = GpuDriverRelease(DRIVER, lambda: GpuDriverUse(self.lock, self.request))
        self.nvml = FakeNvml(read_machine("hgx-h100"))
        self.library = NvmlLibrary(lambda: self.nvml, permission=self.release)
        self.health = NvmlHealth(self.library)

    def held(self) -> bool:
        held = not wait_until_let_go(self.lock, FakeClock(), 0)
        assert held == bool(self.nvml.opened)
        return held


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({f"{DRIVER}/release-driver": "true"}, f"label {DRIVER}/release-driver"),
        ({f"{DRIVER}/release-driver": "maintenance"}, f"label {DRIVER}/release-driver"),
        ({"nvidia.com/gpu.deploy.client": "paused-for-driver-upgrade"}, "gpu.deploy.client=paused-for-driver-upgrade"),
        ({"nvidia.com/gpu.deploy.device-plugin": "paused-for-mig-change"}, "gpu.deploy.device-plugin=paused-for-mig"),
        ({"nvidia.com/gpu.deploy.dra-driver": "paused-for-driver-upgrade"}, "gpu.deploy.dra-driver=paused"),
    ],
)
def test_labels_that_ask(node: Node, labels: dict[str, str], words: str) -> None:
    node.release.note_labels(labels)
    assert words in (node.release.refusal() or "")
    node.release.note_labels({})
    assert node.release.refusal() is None


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {f"{DRIVER}/release-driver": "false"},
        {f"{DRIVER}/release-driver": ""},
        {"nvidia.com/gpu.deploy.client": "true"},
        {"nvidia.com/gpu.deploy.device-plugin": "false"},
        {"nvidia.com/mig.config.state": "paused-for-mig-change"},
        {"other.example.com/release-driver": "true"},
    ],
)
def test_labels_that_do_not_ask(node: Node, labels: dict[str, str]) -> None:
    node.release.note_labels(labels)
    assert node.release.refusal() is None


def test_at_the_next_look_nvml_is_closed_and_not_opened_before_it_is_given_back(node: Node) -> None:
    node.health.poll()
    assert node.held()
    request_release(node.request, "a new driver")
    for look in (node.health.events, node.health.poll, node.health.events):
        with pytest.raises(GpuDriverReleasedError, match="a new driver"):
            look()
        assert not node.held()
    withdraw(node.request)
    node.health.poll()
    assert node.held()


def test_what_happened_before_the_release_is_told_first(node: Node) -> None:
    node.health.poll()
    assert node.nvml.report_xid(2, 48)
    request_release(node.request, "a new driver")
    assert [event.xid for event in node.health.events()] == [48]
    assert not node.held()
    with pytest.raises(GpuDriverReleasedError):
        node.health.events()


def test_a_request_between_the_look_and_the_lock_is_obeyed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    enter = node.release.enter

    def enter_late() -> None:
        request_release(node.request, "just now")
        enter()

    monkeypatch.setattr(node.release, "enter", enter_late)
    with pytest.raises(GpuDriverReleasedError, match="just now"):
        node.health.poll()
    assert not node.held()


def test_a_driver_that_cannot_be_opened_is_not_held(node: Node) -> None:
    node.nvml.refuse("nvmlInitWithFlags", 9)
    with pytest.raises(Exception, match="DRIVER_NOT_LOADED"):
        node.health.poll()
    assert wait_until_let_go(node.lock, FakeClock(), 0)


def test_all_devices_are_tainted_meanwhile(node: Node) -> None:
    assert node.release.fault() is None
    request_release(node.request, "a new driver")
    fault = node.release.fault()
    assert fault is not None
    assert (fault.health_class, fault.key, fault.blocks) == (HealthClass.UNREADY, "driver-released", True)
