from __future__ import annotations

import json

from dracaena.exporter.series.device_series import devices_of
from dracaena.exporter.series.display import NO_ANSWER, tree_text, usage_json
from dracaena.exporter.series.owners import find_owners
from dracaena.exporter.series.readings import (
    DeviceUse,
    DriverReading,
    GpuProcess,
    GpuQuantity,
    GpuReading,
    MigInstance,
    ProcessPlace,
)
from support.exporting_node import entry, pod_uid

MIB = 1 << 20
VALUES = {
    GpuQuantity.GPU_UTILIZATION_PERCENT: 80.0,
    GpuQuantity.MEMORY_USED_BYTES: 512.0 * MIB,
    GpuQuantity.MEMORY_TOTAL_BYTES: 1024.0 * MIB,
}
READING = DriverReading(
    1,
    "580",
    (
        GpuReading(
            0, "GPU-0", "", 0, "H100", DeviceUse(VALUES, (GpuProcess(5, 100 * MIB), GpuProcess(6, 1)), {5: 70.0})
        ),
        GpuReading(1, "GPU-1", "", 1, "H100", DeviceUse({}, ())),
        GpuReading(2, "GPU-2", "", 2, "H100", DeviceUse(), (MigInstance("MIG-2", 7, "1g.10gb"),)),
    ),
)
ENTRIES = [
    entry("a", "GPU-0", number=1),
    entry("b", "GPU-0", number=2, container="x\n\x1b[31m"),
    entry("c", "MIG-2", number=3),
]
DEVICES = devices_of(READING, find_owners(ENTRIES, READING.gpus), {5: ProcessPlace(pod_uid(1))}, "node-1")


def test_the_tree_shows_gpus_their_parts_and_who_has_them() -> None:
    assert tree_text(DEVICES, "node-1").splitlines() == [
        "node-1: 3 GPUs",
        "├─ GPU0 H100: 80 % busy, 512 of 1024 MiB, pids 5 6",
        "   └─ team/a/main: 1 processes, 100 MiB, 70 % of the SMs",
        "   └─ team/b/x??[31m: 0 processes, 0 MiB, 0 % of the SMs",
        "├─ GPU1 H100: free",
        "├─ GPU2 H100",
        "   ├─ MIG 1g.10gb (GPU instance 7)",
        "      └─ team/c/main",
    ]


def test_usage_is_told_by_pod_and_container() -> None:
    document = json.loads(usage_json(DEVICES, "node-1"))
    assert (document["node"], document["driver"]) == ("node-1", True)
    found = {pod["pod"]: pod["containers"] for pod in document["pods"]}
    gpu = {"gpu": 0, "uuids": ["GPU-0"]}
    assert found["a"] == {"main": [{**gpu, "processes": 1, "memory_bytes": 100 * MIB, "sm_ratio": 0.7}]}
    assert found["c"] == {"main": [{"gpu": 2, "uuids": ["MIG-2"]}]}


def test_usage_tells_what_devices_do_that_no_container_has_where_that_is_known() -> None:
    assert json.loads(usage_json(DEVICES, "node-1"))["unowned"] == [{"gpu": 1, "uuids": ["GPU-1"], "processes": 0}]
    nobody = devices_of(READING, find_owners((), READING.gpus), {}, "node-1")
    assert json.loads(usage_json(nobody, "node-1"))["unowned"] == [
        {"gpu": 0, "uuids": ["GPU-0"], "processes": 2, "memory_bytes": 512 * MIB, "busy_ratio": 0.8},
        {"gpu": 1, "uuids": ["GPU-1"], "processes": 0},
        {"gpu": 2, "uuids": ["MIG-2"], "profile": "1g.10gb"},
    ]
    assert "unowned" not in json.loads(usage_json(nobody, "node-1", owners_known=False))


def test_a_driver_that_does_not_answer_is_said() -> None:
    assert NO_ANSWER in tree_text(None, "node-1")
    assert json.loads(usage_json(None, "node-1")) == {"node": "node-1", "driver": False, "pods": []}
