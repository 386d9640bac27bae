"""ResourceSlices."""

from __future__ import annotations

from typing import Any

from transcripts.scenarios.documents import DRIVER, SLICES, Document, resource_slice
from transcripts.session import Session

PATH = f"{SLICES}/s"
TAINT = {"key": f"{DRIVER}/controller-allocated", "value": "true", "effect": "NoSchedule"}
SHARED_GPU: Document = {
    "name": "gpu-00000000-0000-4000-8000-000000000001",
    "attributes": {"type": {"string": "gpu"}},
    "capacity": {
        "memory": {
            "value": "85520810496",
            "requestPolicy": {"default": "81559Mi", "validRange": {"min": "1Mi", "max": "81559Mi", "step": "1Mi"}},
        },
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        },
    },
    "allowMultipleAllocations": True,
    "taints": [TAINT],
}
"""Its memory is no whole number of MiB: the value is exact, and given out in whole ones."""
COUNTERS: Document = {"name": "c", "counters": {"memory": {"value": "1"}}}


def publish(api: Session) -> None:
    """What a driver publishes, and how it changes."""
    attributes = {
        "numa": {"int": 1},
        "nvlink": {"bool": False},
        "model": {"string": ""},
        "driverVersion": {"version": "535.104.5-a+b"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    }
    gpu = {"name": "gpu-0", "attributes": attributes, "capacity": {"memory": {"value": "80000Mi"}}, "taints": [TAINT]}
    api.create("a slice", SLICES, resource_slice("s", [gpu]))
    api.merge("the next generation", PATH, {"spec": {"pool": {"generation": 2}}})
    api.merge("the same generation again", PATH, {"spec": {"pool": {"generation": 2}}})
    api.merge("a label", PATH, {"metadata": {"labels": {"a": "1"}}})
    api.strategic("devices are not merged", PATH, {"spec": {"devices": [{"name": "gpu-1"}]}})
    api.delete("its deletion", PATH)


def slice_identity_is_immutable(api: Session) -> None:
    """Driver, node and pool name stay."""
    api.create("a slice", SLICES, resource_slice("s", []))
    change = {"driver": "other.example.com", "nodeName": "node-b", "pool": {"name": "other"}}
    api.merge("all three", PATH, {"spec": change})


def slice_with_bad_values(api: Session) -> None:
    """One bad attribute refuses the whole slice."""
    bad: Document = {
        "string": {"string": "x" * 65},
        "umlauts": {"string": "é" * 33},
        "version": {"version": "535.104.05"},
        "nothing": {},
        "two": {"int": 1, "bool": True},
        "9digit": {"int": 1},
        "a/b/c": {"int": 1},
        "/x": {"int": 1},
        "x/": {"int": 1},
        "d_.x/y": {"int": 1},
        "z" * 33: {"int": 1},
        f"{'d' * 64}/x": {"int": 1},
    }
    body = resource_slice("s", [{"name": "gpu-0", "attributes": bad}])
    api.send("all causes at once", "POST", SLICES, body)
    for key, value in bad.items():
        api.create(f"{key[:8]} alone", SLICES, resource_slice("s", [{"name": "gpu-0", "attributes": {key: value}}]))
    quantity = {"name": "gpu-0", "capacity": {"memory": {"value": "10X"}}}
    api.create("a quantity that is none", SLICES, resource_slice("s", [quantity]))


def slice_limits(api: Session) -> None:
    """Counts: 128 devices, 64 once there are taints, 32 attributes and capacities, 16 taints."""
    api.create("129 devices", SLICES, resource_slice("s", [{"name": f"gpu-{i}"} for i in range(129)]))
    tainted = [{"name": f"gpu-{i}"} for i in range(64)]
    api.create(
        "65 devices, one with a taint", SLICES, resource_slice("s", [*tainted, {"name": "last", "taints": [TAINT]}])
    )
    attributes = {f"a{i}": {"int": i} for i in range(32)}
    full: Document = {"name": "gpu-0", "attributes": attributes, "capacity": {"memory": {"value": "1"}}}
    api.create("32 attributes and a capacity", SLICES, resource_slice("s", [full]))
    many = [{"key": f"k{i}", "effect": "None"} for i in range(17)]
    api.create("17 taints", SLICES, resource_slice("s", [{"name": "gpu-0", "taints": many}]))


def slice_devices(api: Session) -> None:
    """Names and taints of devices."""
    api.create(
        "names", SLICES, resource_slice("s", [{"name": "gpu"}, {"name": "gpu"}, {"name": "GPU_0"}, {"name": ""}])
    )
    taints = [{"key": "", "effect": "Sometimes", "value": "@"}, {"key": "a"}, TAINT, TAINT]
    api.create("taints", SLICES, resource_slice("s", [{"name": "gpu", "taints": taints}]))
    api.create("no devices", SLICES, resource_slice("s", []))


def slice_nodes(api: Session) -> None:
    """Exactly one way to say which nodes."""
    ways: dict[str, dict[str, Any]] = {
        "two ways": {"allNodes": True},
        "no way": {"nodeName": None},
        "all nodes: no": {"nodeName": None, "allNodes": False},
        "an empty name": {"nodeName": ""},
        "a selector of no term": {"nodeName": None, "nodeSelector": {"nodeSelectorTerms": []}},
        "a selector of two terms": {
            "nodeName": None,
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                    {"matchExpressions": [{"key": "b", "operator": "Exists"}]},
                ]
            },
        },
    }
    for title, fields in ways.items():
        api.create(title, SLICES, resource_slice("s", [], **fields))
    devices = [{"name": "a"}, {"name": "b", "nodeName": "x", "allNodes": True}, {"name": "c", "nodeName": ""}]
    api.create("by device", SLICES, resource_slice("s", devices, nodeName=None, perDeviceNodeSelection=True))
    api.create("by device where the slice says it", SLICES, resource_slice("s", [{"name": "a", "nodeName": "x"}]))


def slice_driver_and_pool(api: Session) -> None:
    """Names of drivers and pools."""
    for driver in ("Bad_Driver", "x" * 64, ""):
        api.create(f"driver {driver[:10]!r}", SLICES, resource_slice("s", [], driver=driver))
    pool = {"name": "a//b", "generation": -1, "resourceSliceCount": 0}
    api.create("a bad pool", SLICES, resource_slice("s", [], pool=pool))
    api.create("no pool", SLICES, resource_slice("s", [], pool={}))
    api.create("upper case", SLICES, resource_slice("s", [], driver="Upper.Example.com"))


def slice_counters(api: Session) -> None:
    """Shared counters, and devices that use them."""
    counters = [COUNTERS, {"name": "c"}, {"name": ""}]
    api.create("bad sets", SLICES, resource_slice("s", None, sharedCounters=counters))
    api.create("beside devices", SLICES, resource_slice("s", [{"name": "gpu"}], sharedCounters=[COUNTERS]))
    nine = [COUNTERS | {"name": f"c{i}"} for i in range(9)]
    api.create("9 sets", SLICES, resource_slice("s", None, sharedCounters=nine))
    many = {"name": "c", "counters": {f"a{i}": {"value": "1"} for i in range(33)}}
    api.create("33 counters", SLICES, resource_slice("s", None, sharedCounters=[many]))
    uses = [{"counterSet": "c", "counters": COUNTERS["counters"]}, {"counterSet": "c", "counters": {}}]
    api.create("bad uses", SLICES, resource_slice("s", [{"name": "gpu", "consumesCounters": uses}]))
    three = [{"counterSet": f"c{i}", "counters": COUNTERS["counters"]} for i in range(3)]
    api.create("3 uses", SLICES, resource_slice("s", [{"name": "gpu", "consumesCounters": three}]))
    api.create("a set", SLICES, resource_slice("s", None, sharedCounters=[COUNTERS]))
    api.create("a use", SLICES, resource_slice("t", [{"name": "gpu", "consumesCounters": uses[:1]}]))


def slice_of_a_shared_gpu(api: Session) -> None:
    """A GPU that several claims may share, whole by default, as the plugin publishes it; and back."""
    api.create("shared, with a taint", SLICES, resource_slice("s", [SHARED_GPU]))
    api.get("it is stored unchanged", PATH)
    dedicated = {name: SHARED_GPU[name] for name in ("name", "attributes", "taints")}
    dedicated["capacity"] = {"memory": {"value": SHARED_GPU["capacity"]["memory"]["value"]}}
    api.merge("for one claim again", PATH, {"spec": {"devices": [dedicated], "pool": {"generation": 2}}})
    api.merge("and shared once more", PATH, {"spec": {"devices": [SHARED_GPU], "pool": {"generation": 3}}})
    policy = {"default": "1Mi", "validRange": {"min": "1Mi"}}
    capacity = {"memory": {"value": SHARED_GPU["capacity"]["memory"]["value"], "requestPolicy": policy}}
    half = {**SHARED_GPU, "allowMultipleAllocations": False, "capacity": capacity}
    api.merge("policies without sharing", PATH, {"spec": {"devices": [half]}})
    for least, most, step in (("1Mi", "85520810496", "1Mi"), ("1Mi", "81559Mi", "3Mi"), ("0", "81560Mi", "1Mi")):
        span = {"min": least, "max": most, "step": step}
        memory = {"value": "85520810496", "requestPolicy": {"default": "81559Mi", "validRange": span}}
        device = {"name": "gpu", "allowMultipleAllocations": True, "capacity": {"memory": memory}}
        api.create("a range that does not fit", SLICES, resource_slice("t", [device]))


def slice_binding_conditions_and_policies(api: Session) -> None:
    """Binding conditions, and capacity that is given in parts."""
    devices: list[Document] = [
        {"name": "a", "bindingConditions": ["x", "x"], "bindingFailureConditions": ["a", "b", "c", "d", "e"]},
        {"name": "b", "bindingConditions": ["x"]},
        {"name": "c", "bindingFailureConditions": ["@"]},
    ]
    api.create("bad conditions", SLICES, resource_slice("s", devices))
    policies: list[Document] = [
        {"default": "3", "validRange": {"min": "2", "max": "20", "step": "2"}},
        {"default": "3", "validValues": ["5", "4", "11"]},
        {"validValues": ["1"]},
        {"default": "1", "validRange": {}},
        {"default": "1", "validValues": ["1"], "validRange": {"min": "1"}},
        {"default": "1", "validValues": [str(i) for i in range(11)]},
    ]
    for policy in policies:
        capacity = {"memory": {"value": "10", "requestPolicy": policy}}
        device = {"name": "gpu", "allowMultipleAllocations": True, "capacity": capacity}
        api.create("a bad policy", SLICES, resource_slice("s", [device]))
    device = {"name": "gpu", "capacity": {"memory": {"value": "10", "requestPolicy": {"default": "1"}}}}
    api.create("a policy of a device that is not shared", SLICES, resource_slice("s", [device]))


def slices_with_mistakes_of_both_kinds(api: Session) -> None:
    """Mistakes that 1.37 finds by declared checks among others that it does not: which of them are told first."""
    conditions = [f"c{i}" for i in range(5)]
    taints = [{"key": "@", "effect": ""}, {"key": "k", "effect": "Sometimes", "value": "@"}]
    use: Document = {"counterSet": "C_", "counters": {"M_": {"value": "1"}}}
    devices: list[Document] = [
        {"name": "A_", "taints": taints, "attributes": {"x": {"int": 1, "bool": True}}},
        {"name": "b", "bindingConditions": conditions, "bindingFailureConditions": ["c"]},
        {"name": "b", "consumesCounters": [use]},
        {"name": "c", "consumesCounters": [use | {"counterSet": f"s{i}"} for i in range(3)], "attributes": {"y": {}}},
    ]
    api.create("in devices", SLICES, resource_slice("s", devices, driver="X_"))
    sets: list[Document] = [{"name": "C_", "counters": {"M_": {"value": "1"}}}, {"name": "", "counters": {}}]
    api.create("in counters", SLICES, resource_slice("s", None, sharedCounters=sets, driver=""))
    many = [COUNTERS | {"name": f"c{i}"} for i in range(9)]
    api.create("9 sets of counters", SLICES, resource_slice("s", None, sharedCounters=many, driver=""))
    api.get("those of a pool", SLICES, fieldSelector="spec.pool.name=node-a")
