"""What a simulation says beside slower ways to find the same out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.objects import Namespace, NodeStatus, ObjectMeta, Pod, Taint
from dracaena.api.resource_objects import (
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
)
from dracaena.controller.simulation import Outcome, Simulation
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    node,
    pod,
    pool_slice,
    request,
)

TOPOLOGY = blocks(2, 2, inside="NV2", outside="SYS")
MACHINES = {name: machine(name, TOPOLOGY) for name in ("n1", "n2")}
DEVICES = [device_name(MACHINES["n1"], ordinal) for ordinal in range(4)]
RULES = st.lists(
    st.builds(
        lambda selector, effect: DeviceTaintRuleSpec(Taint("example.com/t", "x", effect), selector),
        st.none()
        | st.builds(
            DeviceTaintSelector,
            st.sampled_from([None, DRIVER, "nic.example.com"]),
            st.sampled_from([None, "n1", "n2", "n3"]),
            st.sampled_from([None, *DEVICES]),
        ),
        st.sampled_from(["NoSchedule", "NoExecute", "None"]),
    ),
    max_size=3,
)


def decided(
    slices: Sequence[ResourceSlice], claims: Sequence[ResourceClaim], rules: Sequence[DeviceTaintRule] = ()
) -> list[Outcome]:
    simulation = Simulation(
        DRIVER,
        nodes=[node(name) for name in MACHINES],
        slices=slices,
        classes=[device_class()],
        claims=claims,
        taint_rules=rules,
    )
    return list(simulation.outcomes(()))


def tainted(item: ResourceSlice, rules: Sequence[DeviceTaintRuleSpec]) -> ResourceSlice:
    """The slice as if its node had published what the rules add."""
    devices = []
    for device in item.spec.devices:
        own = {"driver": item.spec.driver, "pool": item.spec.pool.name, "device": device.name}
        added = [
            rule.taint
            for rule in rules
            if rule.device_selector is not None
            if all(getattr(rule.device_selector, key) in (None, value) for key, value in own.items())
        ]
        devices.append(msgspec.structs.replace(device, taints=[*device.taints, *added]))
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))


@given(RULES, st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_taint_rules_are_obeyed_as_if_the_slices_had_their_taints(
    specs: list[DeviceTaintRuleSpec], counts: list[int]
) -> None:
    slices = [pool_slice(name, made) for name, made in MACHINES.items()]
    claims = [claim(f"c{number}", request(count=count)) for number, count in enumerate(counts)]
    rules = [DeviceTaintRule(ObjectMeta(name=f"r{number}"), spec) for number, spec in enumerate(specs)]
    by_rules = decided(slices, claims, rules)
    by_slices = decided([tainted(item, specs) for item in slices], claims)
    assert [(each.claim, each.node, each.devices) for each in by_rules] == [
        (each.claim, each.node, each.devices) for each in by_slices
    ]


def test_pods_beyond_the_quota_of_their_namespace_learn_the_numbers() -> None:
    quota = {"gpu.dracaena.dev/quota": '{"gpus": 3}'}
    simulation = Simulation(
        DRIVER,
        nodes=[node(name) for name in MACHINES],
        slices=[pool_slice(name, made) for name, made in MACHINES.items()],
        classes=[device_class()],
        claims=[claim("first", request(count=2)), claim("second", request(count=2)), claim("third", request())],
        namespaces=[Namespace(ObjectMeta(name="default", annotations=quota))],
    )
    outcomes = {each.claim: each for each in simulation.outcomes(())}
    assert [len(each.devices) for each in outcomes.values()] == [2, 0, 1]
    assert outcomes["default/second"].reason == "namespace default may have 3 GPUs, holds 2, the pod wants 2"


def test_to_wait_helps_where_pods_with_gpus_have_the_cpu_too() -> None:
    def wants(name: str, cpu: int, *claims: str) -> Pod:
        return pod(name, *claims, containers=[{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}])

    there = node("n1")
    there = msgspec.structs.replace(there, status=NodeStatus(allocatable={"cpu": "8", "pods": "10"}))
    has = holding(claim("has"), "n1", DEVICES[0])
    runs = wants("runs", 6, "has")
    runs = msgspec.structs.replace(runs, spec=msgspec.structs.replace(runs.spec, node_name="n1"))
    runs = msgspec.structs.replace(runs, status=msgspec.structs.replace(runs.status, phase="Running"))
    simulation = Simulation(
        DRIVER,
        nodes=[there],
        slices=[pool_slice("n1", MACHINES["n1"])],
        classes=[device_class()],
        claims=[has, claim("waits"), claim("never")],
    )
    outcomes = {
        each.claim: each for each in simulation.outcomes([runs, wants("w", 4, "waits"), wants("n", 9, "never")])
    }
    assert outcomes["default/waits"].reason == "0/1 nodes fit: 1 with too little free cpu (n1)"
    assert outcomes["default/waits"].remedies == ("wait until pods leave node n1, which can serve it then",)
    assert outcomes["default/never"].remedies == (), "no node has that much"
