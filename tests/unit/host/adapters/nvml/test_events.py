"""Events through the real pynvml over a fake library, where nobody asks for states. test_health.py has the rest."""

from __future__ import annotations

import pynvml

from dracaena.api.machine import Gpu, Machine
from dracaena.host.adapters.nvml.events import NvmlEvents
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.host.facts.health import GpuEvent
from support.fake_nvml import FakeNvml
from support.topologies import topology_from_matrix

UUIDS = [f"GPU-00000000-0000-0000-0000-{at:012}" for at in range(2)]
NAMING_CALLS = {"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}


def test_who_wants_events_alone_asks_for_no_state() -> None:
    gpus = tuple(Gpu(uuid=uuid, index=at, minor=at) for at, uuid in enumerate(UUIDS))
    nvml = FakeNvml(Machine(name="two", gpus=gpus, topology=topology_from_matrix([["X", "PIX"], ["PIX", "X"]])))
    library = NvmlLibrary(lambda: nvml)
    events = NvmlEvents(library)
    nvml.refuse("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_UNKNOWN, gpu=1)
    library.open()
    events.watch()
    assert nvml.registered == {0}
    assert "UNKNOWN" in (events.unwatched(UUIDS[1]) or "")
    nvml.allow()
    events.watch()
    assert nvml.registered == {0, 1}
    nvml.report_xid(1, 79)
    assert events.events() == (GpuEvent(UUIDS[1], 79),)
    asked = {call for call in nvml.calls if call.startswith("nvmlDeviceGet")}
    assert asked == NAMING_CALLS | {"nvmlDeviceGetSupportedEventTypes"}
    library.close()
