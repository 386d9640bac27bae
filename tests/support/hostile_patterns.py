"""What a tenant, and a node's token, change over and over: each pattern is one change, made 100 times a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import msgspec

from dracaena.api.names import EXTENDED_RESOURCE_ANNOTATION, allocation_gate
from dracaena.api.objects import (
    Node,
    NodeStatus,
    ObjectMeta,
    PersistentVolumeClaim,
    PodResourceClaimStatus,
    VolumeClaimSpec,
)
from dracaena.api.resource_objects import (
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
    ResourceSlice,
)
from dracaena.controller.allocation.nodes.placement.volumes import SELECTED_NODE
from support.allocation import DRIVER, blocks, claim, machine, node, pod, pool_slice, request
from support.hostile_changes import EIGHT, TENANT, HostileWorld, uncounted
from support.other_drivers import nic, nic_class, nic_request, nic_slice

Pattern = Callable[[HostileWorld], None]

TEMPLATE: Final = "template"
"""The one that all of a tenant's pods with templates name."""
VOLUMES: Final = 4
"""Claims for storage that a tenant's pods wait for."""
TOKEN_NODE: Final = "n0"
"""The node whose token is used."""


def _patch_labels(world: HostileWorld) -> None:
    for name in ("small", "large", "unwritable"):
        known = world.of_tenant(name)
        if known is not None:
            world.put(msgspec.structs.replace(known, metadata=msgspec.structs.replace(known.metadata, generation=0)))
            return


def _toggle_annotation(world: HostileWorld) -> None:
    known = world.of_tenant("large")
    if known is not None:
        old = known.metadata.annotations
        metadata = msgspec.structs.replace(
            known.metadata, annotations={} if old else {EXTENDED_RESOURCE_ANNOTATION: "x"}
        )
        world.put(msgspec.structs.replace(known, metadata=metadata))


def _make_claims_again(world: HostileWorld) -> None:
    for name, count in (("large", 9), ("small", 1), ("unwritable", 1)):
        if world.of_tenant(name) is None:
            world.claims_made_again += 1
            world.put(claim(name, request(count=count), uid=f"again-{world.claims_made_again}"))
            return
    world.forget(f"{TENANT}/{world.rng.choice(('large', 'large', 'unwritable'))}")


def _free_a_claim(world: HostileWorld) -> None:
    """The last pod with a reservation has ended, so kube-controller-manager clears the claim."""
    known = world.of_tenant("small")
    if known is not None and known.status.allocation is not None:
        world.put(msgspec.structs.replace(known, status=ResourceClaimStatus()))


def _change_pods(world: HostileWorld) -> None:
    known = world.any_pod()
    if known is not None:
        labels = {"n": str(world.some())}
        world.put(msgspec.structs.replace(known, metadata=msgspec.structs.replace(known.metadata, labels=labels)))


def _make_pods_again(world: HostileWorld) -> None:
    name = f"p{world.rng.randrange(world.crowd)}"
    if f"{TENANT}/{name}" in world.api.pods:
        world.forget(f"{TENANT}/{name}")
    else:
        world.put(pod(name, "large"))


def _make_pods_on_a_node(world: HostileWorld) -> None:
    name = f"b{world.rng.randrange(world.crowd)}"
    if f"{TENANT}/{name}" in world.api.pods:
        world.forget(f"{TENANT}/{name}")
    else:
        world.put(pod(name, "large", nodeName="n0"))


def _take_and_free_gpus(world: HostileWorld) -> None:
    name = f"g{world.some() % 4}"
    if f"{TENANT}/{name}" in world.api.pods:
        world.forget(f"{TENANT}/{name}")
    else:
        world.put(claim(name, request()))
        world.put(pod(name, name))


def _ask_for_new_shapes(world: HostileWorld) -> None:
    number = world.some()
    world.put(claim(f"s{number}", request(count=9)))
    world.put(pod(f"s{number}", f"s{number}", nodeSelector={"n": str(number)}))
    world.forget(f"{TENANT}/s{number - 100}")


def _make_groups(world: HostileWorld) -> None:
    name = f"m{world.rng.randrange(40)}"
    if f"{TENANT}/{name}" in world.api.pods:
        world.forget(f"{TENANT}/{name}")
    else:
        world.put(claim(name, request()))
        world.put(pod(name, name, schedulingGroup={"podGroupName": f"g{world.rng.randrange(3)}"}))


def _make_pods_of_templates(world: HostileWorld) -> None:
    """Pods that name a template: kube-controller-manager makes their claims, or has none to make them from."""
    name = f"t{world.rng.randrange(world.crowd)}"
    if f"{TENANT}/{name}" in world.api.pods:
        world.forget(f"{TENANT}/{name}")
        world.forget(f"{TENANT}/{name}-{TEMPLATE}")
    else:
        world.put(pod(name, templates=[TEMPLATE]))


def _make_templates_again(world: HostileWorld) -> None:
    key, known = f"{TENANT}/{TEMPLATE}", world.template_api.templates
    if known.pop(key, None) is None:
        metadata = ObjectMeta(name=TEMPLATE, namespace=TENANT, uid=f"template-{world.some()}")
        known[key] = ResourceClaimTemplate(metadata, ResourceClaimTemplateSpec({}))


def _generate_claims(world: HostileWorld) -> None:
    """kube-controller-manager makes a pod's claim and writes its name into the pod's status; a user deletes it."""
    made = f"t{world.rng.randrange(world.crowd)}"
    known = world.api.pods.get(f"{TENANT}/{made}")
    if known is None:
        world.put(pod(made, templates=[TEMPLATE]))
        return
    name = f"{made}-{TEMPLATE}"
    if world.of_tenant(name) is not None:
        world.api.remove(f"{TENANT}/{name}")
        return
    world.put(claim(name, request(count=world.rng.choice((1, 9))), owner=known, uid=f"{name}-{world.some()}"))
    statuses = [PodResourceClaimStatus(name=TEMPLATE, resource_claim_name=name)]
    status = msgspec.structs.replace(known.status, resource_claim_statuses=statuses)
    world.put(msgspec.structs.replace(known, status=status))


def _make_gated_pods(world: HostileWorld) -> None:
    """Pods at our gate and at a gate of the tenant's, which it takes off."""
    name = f"w{world.rng.randrange(world.crowd)}"
    known = world.api.pods.get(f"{TENANT}/{name}")
    if known is None:
        gates = [
            {"name": allocation_gate(DRIVER)},
            *([{"name": "example.com/mine"}] if world.rng.random() < 0.5 else []),
        ]
        world.put(pod(name, world.rng.choice(("large", "small")), schedulingGates=gates))
    elif len(known.spec.scheduling_gates) > 1 and world.rng.random() < 0.7:
        spec = msgspec.structs.replace(known.spec, scheduling_gates=known.spec.scheduling_gates[:1])
        world.put(msgspec.structs.replace(known, spec=spec))
    else:
        world.forget(f"{TENANT}/{name}")


def _make_pods_with_volumes(world: HostileWorld) -> None:
    """Pods that wait for storage with claims of their own, and would have GPUs otherwise."""
    if "data" not in world.published:
        _put_volume_claim(world, "data", {})
    name = f"v{world.rng.randrange(world.crowd)}"
    if f"{TENANT}/{name}" in world.api.pods:
        world.forget(f"{TENANT}/{name}")
        return
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{world.rng.randrange(VOLUMES)}"}}
    world.put(claim(name, request(count=world.rng.choice((1, 2)))))
    world.put(pod(name, name, volumes=[volume], nodeSelector={"n": name}))


def _patch_volume_claims(world: HostileWorld) -> None:
    """Labels of claims for storage, and the annotation that says on which node the volume is made."""
    if world.some() % 3 == 0:
        _make_pods_with_volumes(world)
    notes = {} if world.rng.random() < 0.5 else {SELECTED_NODE: f"n{world.rng.randrange(3)}"}
    _put_volume_claim(world, f"data-{world.rng.randrange(VOLUMES)}", notes)


def _make_volume_claims_again(world: HostileWorld) -> None:
    if world.some() % 3 == 0:
        _make_pods_with_volumes(world)
    name = f"data-{world.rng.randrange(VOLUMES)}"
    old = world.published.pop(name, None)
    if old is None:
        _put_volume_claim(world, name, {})
    else:
        world.cluster.intake.volume_claim_changed(old, None)


def _put_volume_claim(world: HostileWorld, name: str, notes: dict[str, str]) -> None:
    meta = ObjectMeta(name=name, namespace=TENANT, resource_version=str(world.some()), annotations=notes)
    old, new = world.published.get(name), PersistentVolumeClaim(meta, VolumeClaimSpec(storage_class_name="local"))
    world.published[name] = new
    world.cluster.intake.volume_claim_changed(old, new)


def _change_a_node(world: HostileWorld) -> None:
    """A node's token changes what the node says that it has, ..."""
    status = NodeStatus(allocatable={"cpu": str(4 + world.some() % 2), "pods": "110"})
    _put_node(world, msgspec.structs.replace(_token_node(world), status=status))


def _label_a_node(world: HostileWorld) -> None:
    """... and its labels."""
    old = _token_node(world)
    metadata = msgspec.structs.replace(old.metadata, labels={"n": str(world.some())})
    _put_node(world, msgspec.structs.replace(old, metadata=metadata))


def _token_node(world: HostileWorld) -> Node:
    found: Node = world.published.setdefault(TOKEN_NODE, node(TOKEN_NODE))
    return found


def _put_node(world: HostileWorld, new: Node) -> None:
    old = _token_node(world)
    world.published[TOKEN_NODE] = new
    world.cluster.intake.node_changed(old, new)


def _publish_again(world: HostileWorld) -> None:
    """A node's token removes its slice, and publishes it again."""
    _put_slice(world, None if world.some() % 2 else _first_slice())


def _publish_other_machines(world: HostileWorld) -> None:
    """A node's token publishes a machine that nobody has seen, or a pool that is never complete."""
    number = world.published["machines"] = world.published.get("machines", 0) + 1
    with uncounted():
        links = blocks(number % 4 + 1, number // 4 % 4 + 1, inside="PIX", outside="SYS")
        made = pool_slice(TOKEN_NODE, machine(f"machine-{number}", links), generation=number + 2)
    if number % 5 == 0:
        pool = msgspec.structs.replace(made.spec.pool, resource_slice_count=2)
        made = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, pool=pool))
    _put_slice(world, made)


@cache
def _first_slice() -> ResourceSlice:
    with uncounted():
        return pool_slice(TOKEN_NODE, EIGHT)


def _put_slice(world: HostileWorld, new: ResourceSlice | None) -> None:
    old = world.published.setdefault("slice", _first_slice())
    world.published["slice"] = new
    world.cluster.intake.slice_changed(old, new)


def _publish_other_devices(world: HostileWorld) -> None:
    """A node's token publishes devices of another driver, which pods of the tenant wait for beside GPUs."""
    if "cards" not in world.published:
        world.cluster.intake.follow_other_drivers()
        world.cluster.intake.class_changed(None, nic_class())
        world.published["cards"] = None
    name = f"k{world.rng.randrange(world.crowd)}"
    if world.some() % 3 == 0 and f"{TENANT}/{name}" not in world.api.pods:
        world.put(claim(name, request()))
        world.put(claim(f"{name}-card", nic_request()))
        world.put(pod(name, name, f"{name}-card"))
    old = world.published["cards"]
    with uncounted():
        new = None if old is not None else nic_slice(TOKEN_NODE, [nic(f"card-{number}") for number in range(128)])
    world.published["cards"] = new
    world.cluster.intake.slice_changed(old, new)


PATTERNS: Final[Mapping[str, Pattern]] = {
    "labels of claims": _patch_labels,
    "annotations of claims": _toggle_annotation,
    "claims made again": _make_claims_again,
    "claims freed": _free_a_claim,
    "labels of pods": _change_pods,
    "pods made again": _make_pods_again,
    "pods made on a node": _make_pods_on_a_node,
    "GPUs taken and freed": _take_and_free_gpus,
    "new shapes": _ask_for_new_shapes,
    "pods of groups": _make_groups,
    "pods of templates": _make_pods_of_templates,
    "templates made again": _make_templates_again,
    "claims from templates": _generate_claims,
    "pods at gates": _make_gated_pods,
    "pods with volumes": _make_pods_with_volumes,
    "claims for storage": _patch_volume_claims,
    "claims for storage made again": _make_volume_claims_again,
    "a node changed": _change_a_node,
    "labels of a node": _label_a_node,
    "slices published again": _publish_again,
    "machines that nobody has seen": _publish_other_machines,
    "devices of another driver": _publish_other_devices,
}
