"""The status of a claim: allocation, reservations, devices."""

from __future__ import annotations

from typing import Any

from transcripts.scenarios.documents import (
    CLAIMS,
    PROTECTION,
    Document,
    allocation,
    claim,
    consumer,
    exactly,
    opaque,
    result,
)
from transcripts.session import Session

PATH = f"{CLAIMS}/c"
STATUS = f"{PATH}/status"
SHARE = "1e24e977-0739-42b1-8212-1fcbe5e6cb69"
NODE_A: Document = {
    "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}]
}


def allocate_and_take_back(api: Session) -> None:
    """What an allocator does: finalizer, allocation with a reservation, and back."""
    api.create("a claim", CLAIMS, claim("c"))
    guard = api.merge("the finalizer", PATH, {"metadata": {"finalizers": [PROTECTION]}})["metadata"]["resourceVersion"]
    given = allocation(result(), nodeSelector=NODE_A, allocationTimestamp="2026-01-01T00:00:00Z")
    body: Any = {"metadata": {"resourceVersion": guard}, "status": {"allocation": given, "reservedFor": [consumer()]}}
    api.merge("the allocation, guarded", STATUS, body)
    api.merge("a second allocator with the old version", STATUS, body)
    api.merge("a deletion of the finalizer while allocated", PATH, {"metadata": {"finalizers": None}})
    api.merge("the reservation goes", STATUS, {"status": {"reservedFor": None}})
    api.merge("the allocation goes", STATUS, {"status": {"allocation": None}})


def allocation_is_immutable(api: Session) -> None:
    """An allocation is taken back as a whole or stays; a reservation keeps it."""
    _allocated(api)
    api.merge("another device", STATUS, {"status": {"allocation": allocation(result("gpu-1"))}})
    api.merge("a node selector", STATUS, {"status": {"allocation": {"nodeSelector": NODE_A}}})
    api.merge("the same", STATUS, {"status": {"allocation": allocation(result())}})
    api.merge("taken back while reserved", STATUS, {"status": {"allocation": None}})
    api.merge("both taken back", STATUS, {"status": {"allocation": None, "reservedFor": None}})


def allocation_of_a_deleted_claim(api: Session) -> None:
    """A claim that is being deleted gets no allocation and no reservation any more."""
    _allocated(api, finalizers=[PROTECTION])
    api.delete("its deletion", PATH)
    api.merge("one more reservation", STATUS, {"status": {"reservedFor": [consumer(), consumer("pod-b", "uid-b")]}})
    api.merge("everything taken back", STATUS, {"status": {"allocation": None, "reservedFor": None}})
    api.merge("allocated anew", STATUS, {"status": {"allocation": allocation(result())}})
    api.merge("the finalizer goes", PATH, {"metadata": {"finalizers": None}})
    api.get("gone", PATH)


def allocation_validation(api: Session) -> None:
    """Allocations that are refused, all causes at once."""
    sub = {"name": "sub", "deviceClassName": "gpu"}
    api.create("a claim", CLAIMS, claim("c", requests=[exactly(), {"name": "either", "firstAvailable": [sub]}]))
    results = [
        result(request="either/other"),
        result(request="other"),
        result(driver=""),
        result(pool=""),
        result("X_"),
        result(shareID="zz"),
        result(shareID=SHARE.upper()),
        result(bindingConditions=["a"]),
    ]
    api.merge("bad results", STATUS, {"status": {"allocation": allocation(*results)}})
    bad: list[Document] = [opaque({}), {"source": "FromNowhere"} | opaque({}), {"source": "FromClass"}]
    api.merge("bad configs", STATUS, {"status": {"allocation": {"devices": {"config": bad}}}})
    api.merge(
        "an empty node selector", STATUS, {"status": {"allocation": allocation(nodeSelector={"nodeSelectorTerms": []})}}
    )
    many = {"results": [result()] * 33, "config": [{"source": "FromClass"} | opaque({})] * 65}
    api.merge("33 results and 65 configs", STATUS, {"status": {"allocation": {"devices": many}}})
    good = allocation(
        result(shareID=SHARE, consumedCapacity={"memory": "1024Mi"}, tolerations=[{"key": "a"}]),
        result("gpu-1", request="either/sub"),
        nodeSelector=NODE_A,
        allocationTimestamp="2026-01-01T00:00:00.5+01:00",
    )
    good["devices"]["config"] = [{"source": "FromClass", "requests": ["gpus"]} | opaque({"b": 1, "a": 2})]
    api.merge("a whole one", STATUS, {"status": {"allocation": good}})


def reserved_for(api: Session) -> None:
    """Reservations need an allocation, have unique uids, and are at most 256."""
    api.create("a claim", CLAIMS, claim("c"))
    api.merge("without an allocation", STATUS, {"status": {"reservedFor": [consumer()]}})
    api.merge("an allocation", STATUS, {"status": {"allocation": allocation(result())}})
    empty = {"resource": "", "name": "", "uid": ""}
    api.merge("an empty one", STATUS, {"status": {"reservedFor": [empty]}})
    api.merge("a uid twice", STATUS, {"status": {"reservedFor": [consumer(), consumer("pod-b")]}})
    crowd = [consumer(uid=str(number)) for number in range(257)]
    api.merge("257", STATUS, {"status": {"reservedFor": crowd}})
    api.strategic("a first", STATUS, {"status": {"reservedFor": [consumer()]}})
    api.strategic("a second beside it", STATUS, {"status": {"reservedFor": [consumer("pod-b", "uid-b")]}})
    order = {"$setElementOrder/reservedFor": [{"uid": "uid-b"}, {"uid": "uid-a"}]}
    api.strategic("in another order", STATUS, {"status": order})
    api.strategic("the first goes", STATUS, {"status": {"reservedFor": [{"$patch": "delete", "uid": "uid-a"}]}})
    last = [{"op": "test", "path": "/status/reservedFor/0/uid", "value": "uid-b"}]
    api.json_patch("the second goes", STATUS, [*last, {"op": "remove", "path": "/status/reservedFor/0"}])
    api.json_patch("it is gone", STATUS, last)


def device_status(api: Session) -> None:
    """What a driver says about allocated devices."""
    _allocated(api)
    device = {"driver": "gpu.example.com", "pool": "node-a", "device": "gpu-0"}
    api.merge("of a device that is not allocated", STATUS, {"status": {"devices": [device | {"device": "gpu-9"}]}})
    condition = {"type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    bad = device | {
        "conditions": [{"type": "", "status": "Maybe"}, condition, condition | {"reason": "-"}],
        "data": "text",
        "networkData": {"interfaceName": "x" * 257, "ips": ["10.0.0.1", "010.0.0.1/24"], "hardwareAddress": "x" * 129},
    }
    api.merge("a bad one", STATUS, {"status": {"devices": [bad, device]}})
    good = device | {"data": {"a": 1}, "networkData": {"ips": ["2001:db8::1/64"]}, "conditions": [condition]}
    api.merge("a good one", STATUS, {"status": {"devices": [good]}})
    api.merge("it goes with the allocation", STATUS, {"status": {"allocation": None, "reservedFor": None}})


def _allocated(api: Session, **metadata: Any) -> None:
    api.create("a claim", CLAIMS, claim("c", metadata))
    status = {"allocation": allocation(result()), "reservedFor": [consumer()]}
    api.merge("its allocation", STATUS, {"status": status})


def allocations_with_mistakes_of_both_kinds(api: Session) -> None:
    """Mistakes that 1.37 finds by declared checks among others that it does not: which of them are told first."""
    api.create("a claim", CLAIMS, claim("c"))
    conditions = [f"c{i}" for i in range(5)]
    results = [
        result("X_", driver="X_"),
        result(driver=f"{'x' * 64}"),
        result("", pool="a//b"),
        result(pool="x" * 254),
        result(request="other", pool="X_", shareID="zz"),
        result(bindingConditions=conditions, bindingFailureConditions=["c"]),
        result(bindingConditions=["c"], bindingFailureConditions=conditions),
    ]
    config = [
        {"source": "Else", "requests": ["gpus", "gpus", "other"]} | opaque({}, driver=""),
        {"source": "", "requests": ["gpus"]} | opaque("text"),
    ]
    bad = allocation(*results)
    bad["devices"]["config"] = config
    api.merge("in results and configs", STATUS, {"status": {"allocation": bad}})
    many = allocation(*[result("X_")] * 33)
    many["devices"]["config"] = [{"source": "FromClaim"} | opaque("text")] * 65
    api.merge("33 results and 65 configs", STATUS, {"status": {"allocation": many}})
    twice = {"allocation": allocation(result()), "reservedFor": [consumer(), consumer("pod-b"), consumer("", "uid-b")]}
    api.merge("in reservations", STATUS, {"status": twice})
    device = {"driver": "gpu.example.com", "pool": "node-a", "device": "gpu-0"}
    ips = ["10.0.0.1/24", "10.0.0.1/24", "x"]
    bad_device = device | {"shareID": "zz", "networkData": {"ips": ips}, "data": "text"}
    devices = [bad_device, device | {"networkData": {"ips": ["10.0.0.1/24"] * 17}}]
    api.merge("in the status of devices", STATUS, {"status": {"allocation": allocation(result()), "devices": devices}})
