"""What must hold after each step, and what must hold at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dracaena.api.objects import ENDED, Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.state.node_state import claim_holder
from dracaena.controller.lifecycle.claim_record import ClaimRecord, only_node
from dracaena.controller.lifecycle.own_allocation import our_node
from dracaena.controller.lifecycle.phases import OURS, Phase
from dracaena.controller.lifecycle.prospects import SETTLE_S
from support.allocation import DRIVER
from support.interleaver.hardware import is_possible, is_room_for
from support.interleaver.process import Call, Process
from support.interleaver.server import is_reserved_for, owner_uid
from support.interleaver.world import Checked, ViolationError, World, held

Device = tuple[str, str]

WHOLE: Final = 2
"""Halves of a GPU."""

_HOLDING: Final = frozenset({Phase.ALLOCATED, Phase.DROPPING, Phase.UNRESERVED, Phase.RESERVING, Phase.CLEARING})
_WRITING: Final = frozenset({Phase.DECIDED, Phase.WRITING, Phase.DROPPING, Phase.RESERVING, Phase.CLEARING})


def check_step(world: World) -> None:
    """Raise ViolationError when something does not hold that holds after each step."""
    calls, checked = under_way(world), world.checked
    is_same = checked is not None and checked.version == world.server.version and len(checked.calls) == len(calls)
    if checked is None or not is_same or any(one is not other for one, other in zip(calls, checked.calls, strict=True)):
        _check_server(world, calls)
        world.checked = Checked(world.server.version, calls)
    if world.rooms:
        _nobody_gets_what_is_kept(world)
    for process in world.processes.values():
        if process is not None:
            _records_are_right(world, process)
            if process.is_done():
                check_collisions(world, process)


def _check_server(world: World, calls: Sequence[Call]) -> None:
    """Check what the server has and may still be told: nearly half of all steps change nothing of that."""
    _no_device_twice(world, calls)
    _only_ours(world)
    _no_quota_exceeded(world, calls)
    for pod in world.server.pods.values():
        _has_its_devices(world, pod)


def _no_device_twice(world: World, calls: Sequence[Call]) -> None:
    """Allocations that the server holds, or can still come to hold, take no more than all of any GPU."""
    owners: dict[Device, dict[str, set[str]]] = {}
    for claim in world.server.claims.values():
        if claim.status.allocation is not None and not _is_foreign(world, claim):
            _note(world, owners, claim.key, held(claim))
            for gpu in {_gpu_of(world, device) for device in held(claim)}:
                if _is_too_much(world, gpu, owners[gpu]):
                    raise ViolationError(f"{' and '.join(sorted(owners[gpu]))} have {gpu} at a time")
    for call in calls:
        stored = world.server.claims.get(call.claim_key)
        if not call.devices or stored is None or stored.metadata.resource_version != call.guard:
            continue
        _note(world, owners, call.claim_key, call.devices)
        for gpu in {_gpu_of(world, device) for device in call.devices}:
            if _is_too_much(world, gpu, owners[gpu]):
                before = sorted(owners[gpu].keys() - {call.claim_key})
                raise ViolationError(
                    f"{gpu} of {' and '.join(before)} is also in a write that can land of {call.claim_key}"
                )


def _note(world: World, owners: dict[Device, dict[str, set[str]]], key: str, devices: Iterable[Device]) -> None:
    for device in devices:
        owners.setdefault(_gpu_of(world, device), {}).setdefault(key, set()).add(device[1])


def _gpu_of(world: World, device: Device) -> Device:
    """Return pool and GPU of a device, which may be a part of it."""
    if not world.scenario.divisions:
        return device
    node, name = device
    return node, f"GPU {world.scenario.hardware[node].devices[name][0]}"


def _is_too_much(world: World, gpu: Device, owners: Mapping[str, Iterable[str]]) -> bool:
    """Whether claims have more of one GPU than all of it, or parts of it that cannot be there at a time."""
    if not world.scenario.divisions:
        return _parts(world, owners) > WHOLE
    devices = world.scenario.hardware[gpu[0]].devices
    return not is_possible([devices[name][1] for names in owners.values() for name in names])


def _only_ours(world: World) -> None:
    """We allocate no device of another driver, and no claim of a pod to another."""
    for claim in world.server.claims.values():
        if claim.metadata.name in world.scenario.nics and claim.status.allocation and not _is_foreign(world, claim):
            raise ViolationError(f"{claim.key} got network cards, which are not ours to give")
        owner = owner_uid(claim)
        if owner is not None and any(user.uid != owner for user in claim.status.reserved_for):
            raise ViolationError(f"{claim.key} is reserved for another pod than the one it was made for")


def _no_quota_exceeded(world: World, calls: Sequence[Call]) -> None:
    """No namespace has more GPUs, in allocations that the server holds or can still come to hold, than it may have."""
    if not world.scenario.quotas:
        return
    landing = [
        (call.claim_key, len(call.devices))
        for call in calls
        if (stored := world.server.claims.get(call.claim_key)) and stored.metadata.resource_version == call.guard
    ]
    for namespace, most in world.scenario.quotas.items():
        gpus = {key: count for key, count in landing if key.startswith(f"{namespace}/")}
        gpus |= {key: len(held(claim)) for key, claim in _in(world, namespace) if claim.status.allocation is not None}
        if sum(gpus.values()) > most:
            raise ViolationError(f"namespace {namespace} may have {most} GPUs, and has or can still get {gpus}")


def _in(world: World, namespace: str) -> list[tuple[str, ResourceClaim]]:
    return [(key, claim) for key, claim in world.server.claims.items() if key.startswith(f"{namespace}/")]


def _is_within_quota(world: World, namespace: str, wanted: Iterable[str]) -> bool:
    """Whether a namespace may have what claims of these names ask for, beside all that it has."""
    if namespace not in world.scenario.quotas:
        return True
    has = sum(len(held(claim)) for _, claim in _in(world, namespace))
    return has + sum(map(world.scenario.count, wanted)) <= world.scenario.quotas[namespace]


def _parts(world: World, claim_keys: Iterable[str]) -> int:
    """Return how many halves of a device these claims take together."""
    return sum(world.scenario.parts(key.partition("/")[2]) for key in claim_keys)


def _nobody_gets_what_is_kept(world: World) -> None:
    """What kube-scheduler cleared while it evicts others for its pod goes to nobody else for a while, unless something
    else is decided for the pod."""
    for room in list(world.rooms):
        pod, claim = world.server.pods.get(room.pod_key), world.server.claims.get(room.claim_key)
        is_waiting = pod is not None and pod.metadata.uid == room.pod_uid and not pod.spec.node_name
        is_free = claim is not None and claim.status.allocation is None
        leaders = [process for process in world.processes.values() if process is not None and process.leads]
        known = [process.controller.parts.cluster._state.records.claim(room.claim_key) for process in leaders]
        is_decided = any(record is not None and record.phase in OURS for record in known)
        is_over = world.server.now_s >= room.at_s + SETTLE_S or is_decided
        if not is_waiting or not is_free or is_over or (pod is not None and _is_over(pod)):
            world.rooms.remove(room)
            continue
        for other in world.server.claims.values():
            if held(other) & room.devices:
                raise ViolationError(f"{other.key} has devices on whose node others are evicted for {room.pod_key}")


def under_way(world: World) -> list[Call]:
    """Return the writes that the server has not carried out, and still may."""
    calls = [late.call for late in world.late]
    for process in world.processes.values():
        parked = [strand.waits_for for strand in process.strands.values()] if process is not None else []
        calls += [call for call in parked if isinstance(call, Call) and call.is_write and not call.is_sent]
    return calls


def _is_foreign(world: World, claim: ResourceClaim) -> bool:
    allocation = claim.status.allocation
    return allocation is not None and (claim.metadata.uid, allocation.allocation_timestamp or "") in world.foreign


def _has_its_devices(world: World, pod: Pod) -> None:
    """A pod on a node has its claims there.

    The one exception: a shared claim that another pod's PostFilter cleared while it was reserved for nobody, or
    kube-controller-manager when its last user ended. They ask nobody before, so nothing that we write can prevent it.
    Then the devices must be held by nobody else as long as the pod may come or is there, and the claim must be
    allocated there again in the end.

    And what World.moved_under_a_bind() lets pass.
    """
    node = pod.spec.node_name
    if not node or pod.status.phase in ENDED or pod.metadata.name in world.scenario.on:
        return
    for entry in pod_claims(pod):
        claim = world.server.claims.get(entry.key or "")
        if claim is None or _is_new(world, claim, pod) or claim.metadata.deletion_timestamp is not None:
            continue  # users deleted it, and may have made another one: kubelet starts no such pod
        if claim.status.allocation is not None and only_node(claim) == node:
            continue
        if (pod.metadata.uid, claim.key) in world.moved:
            continue
        excused = [one for one in world.excused if (one.pod_uid, one.claim_key) == (pod.metadata.uid, claim.key)]
        if not excused:
            where = "nowhere" if claim.status.allocation is None else f"on {only_node(claim)}"
            raise ViolationError(f"{pod.key} is on {node}, and its {claim.key} is allocated {where}")
        for other in world.server.claims.values():
            taken = _taken(world, other, excused[-1].devices)
            if taken and other.key != claim.key and not _is_foreign(world, other):
                raise ViolationError(f"{other.key} has {sorted(taken)}, with which {pod.key} was bound")


def _taken(world: World, other: ResourceClaim, devices: frozenset[Device]) -> frozenset[Device]:
    """Return what a claim has of these devices, or of what cannot be there beside them."""
    if not world.scenario.divisions:
        return held(other) & devices
    owners: dict[Device, dict[str, set[str]]] = {}
    _note(world, owners, "", devices)
    _note(world, owners, other.key, held(other))
    shared = {gpu for gpu, both in owners.items() if len(both) > 1 and _is_too_much(world, gpu, both)}
    return frozenset(device for device in held(other) if _gpu_of(world, device) in shared)


def _is_new(world: World, claim: ResourceClaim, pod: Pod) -> bool:
    """Whether a claim without an allocation came after its pod was there, or, made from a template, was on a node."""
    if claim.status.allocation is not None:
        return False
    if owner_uid(claim) is not None:
        return claim.metadata.uid in world.made_late
    return int(claim.metadata.uid.rpartition("-")[2]) > int(pod.metadata.uid.rpartition("-")[2])


def _records_are_right(world: World, process: Process) -> None:
    """Every record shows a state that the server had, is in a phase that fits it, and no write is left hanging."""
    if process.problems:
        raise ViolationError(f"{process.name}: {process.problems[0]}")
    controller = process.controller
    if not process.has_led and len(controller.parts.queue):
        raise ViolationError(f"{process.name} stands by, and queues work")
    records = tuple(controller.parts.cluster._state.records._claims.values())
    is_idle = "w0" not in process.strands and "w1" not in process.strands
    if process.right == (is_idle, records):
        return  # two of three steps change none of a process' records
    for record in records:
        if is_idle and record.phase in _WRITING:
            raise ViolationError(f"{process.name} has {record.key} {record.phase.value}, and no worker writes")
        known = process.checked.get(record.key)
        if known is record:
            continue
        _rests_rightly(world, process, record)
        process.checked[record.key] = record
        claim = record.shown
        if (
            known is not None
            and known.uid == record.uid
            and int(claim.metadata.resource_version) < int(known.shown.metadata.resource_version)
            and _is_there(world, record)  # of one that a read did not find the watch still has to show what it was
        ):
            raise ViolationError(f"{process.name} goes back to an older state of {record.key}")
        stored = world.server.shown.get((claim.metadata.uid, claim.metadata.resource_version))
        if stored is None or stored.status != claim.status:
            raise ViolationError(f"{process.name} has a state of {record.key} that never was")
        is_held = claim.status.allocation is not None
        is_reserved = bool(claim.status.reserved_for)
        if is_held is not (record.phase in _HOLDING):
            raise ViolationError(f"{process.name} has {record.key} {record.phase.value}, allocated: {is_held}")
        wrong_reserved = record.phase in (Phase.UNRESERVED, Phase.RESERVING) and is_reserved
        if wrong_reserved or (record.phase is Phase.ALLOCATED and not is_reserved):
            raise ViolationError(f"{process.name} has {record.key} {record.phase.value}, reserved: {is_reserved}")
    process.right = is_idle, records


def _rests_rightly(world: World, process: Process, record: ClaimRecord) -> None:
    """Nothing rests that the server never showed in the claim."""
    for rest in record.rest:
        shown = world.server.shown.get((rest.metadata.uid, rest.metadata.resource_version))
        if not isinstance(shown, ResourceClaim) or held(shown) != held(rest):
            raise ViolationError(f"{process.name} holds {sorted(held(rest))} for {record.key}, which never had them")


def _is_there(world: World, record: ClaimRecord) -> bool:
    stored = world.server.claims.get(record.key)
    return stored is not None and stored.metadata.uid == record.uid


def check_rest(world: World) -> None:
    """Raise ViolationError when something does not hold that holds once everything was seen and time has passed."""
    pods = {pod.metadata.uid: pod for pod in world.server.pods.values() if not _is_over(pod)}
    for claim in world.server.claims.values():
        if claim.status.allocation is None or (_is_foreign(world, claim) and not claim.status.reserved_for):
            continue  # kube-scheduler's own allocations are not ours to clear
        if not claim.status.reserved_for:
            raise ViolationError(f"{claim.key} is allocated, and reserved for nobody")
        for user in claim.status.reserved_for:
            if user.uid not in pods:
                raise ViolationError(f"{claim.key} is reserved for {user.name}, which is gone")
    if world.scenario.generated:
        _claims_follow_their_pods(world)
    for pod in pods.values():
        if pod.spec.node_name:
            _is_served(world, pod)
        elif (_could_its_group if pod.metadata.name in world.scenario.groups else _could_be_bound)(world, pod):
            raise ViolationError(f"{pod.key} is not bound, and could be")
    for process in world.processes.values():
        if process is not None and process.leads:
            _holds_what_the_server_holds(world, process)


def _claims_follow_their_pods(world: World) -> None:
    """Each pod has the claims of its own that it names; and when it is over, they are gone: nothing of ours holds
    them."""
    live = {pod.metadata.uid: pod for pod in world.server.pods.values() if not _is_over(pod)}
    for claim in world.server.claims.values():
        owner = owner_uid(claim)
        if owner is not None and owner not in live:
            raise ViolationError(f"{claim.key} is there, and the pod that it was made for is over")
    for pod in live.values():
        for entry in pod_claims(pod):
            named = world.server.claims.get(entry.key or "")
            is_own = named is not None and owner_uid(named) == pod.metadata.uid
            if entry.generated and not is_own and pod.metadata.deletion_timestamp is None:
                raise ViolationError(f"{pod.key} has no claim of its own for {entry.alias}")


def _could_its_group(world: World, pod: Pod) -> bool:
    """Whether all pods of a pod's group could be bound: each is there, and what they need is free at a time, or held by
    pods of groups that wait too, wherever its first pods go. Pods are decided one by one, so a small one may take what
    only a larger one of its gang cannot do without, over and over (docs/design/gangs.md, "Why not more")."""
    scenario = world.scenario
    group = scenario.groups[pod.metadata.name]
    members = [world.server.pods.get(scenario.key(name)) for name, of in scenario.groups.items() if of == group]
    if any(member is None or _is_over(member) for member in members):
        return False
    wanted = [key for member in members if member is not None for key in _claims_of(member)]
    claims = [world.server.claims.get(key) for key in wanted]
    if any(claim is None or claim.metadata.deletion_timestamp is not None for claim in claims):
        return False
    waiting = [world.server.pods.get(scenario.key(name)) for name in scenario.groups]
    given_back = {key for one in waiting if one is not None and not one.spec.node_name for key in _claims_of(one)}
    others = (
        claim
        for key, claim in world.server.claims.items()
        if key not in given_back or claim.metadata.deletion_timestamp is not None  # its pod keeps it reserved
    )
    taken = Counter(node for claim in others for node, _ in held(claim))
    free = {node: len(devices) - taken[node] for node, devices in scenario.devices.items()}
    lacking = [key for member in members if member and not member.spec.node_name for key in _claims_of(member)]
    for size in sorted(scenario.claims[key.partition("/")[2]] for key in lacking):
        node = max(free, key=lambda name: free[name])
        if free[node] < size:
            return False
        free[node] -= size
    return True


def _claims_of(pod: Pod) -> list[str]:
    return [entry.key or "" for entry in pod_claims(pod)]


def _is_served(world: World, pod: Pod) -> None:
    if pod.metadata.name in world.scenario.on:
        _is_served_where_it_was_made(world, pod)
        return
    for entry in pod_claims(pod):
        claim = world.server.claims.get(entry.key or "")
        if (
            claim is None
            or claim.metadata.deletion_timestamp is not None
            or (pod.metadata.uid, claim.key) in world.moved
        ):
            continue
        if claim.status.allocation is None or only_node(claim) != pod.spec.node_name:
            if not _is_impossible(world, claim, pod):
                raise ViolationError(
                    f"{pod.key} is on {pod.spec.node_name}, and its {claim.key} is not allocated there"
                )
        elif not is_reserved_for(claim, pod):
            raise ViolationError(f"{pod.key} is on {pod.spec.node_name}, and its {claim.key} is not reserved for it")


def _is_served_where_it_was_made(world: World, pod: Pod) -> None:
    """A pod that was made on a node gets its claims there, unless that cannot be: kubelet starts it then."""
    claims = [world.server.claims.get(entry.key or "") for entry in pod_claims(pod)]
    there = [one for one in claims if one is not None and one.metadata.deletion_timestamp is None]
    is_elsewhere = any(one.status.allocation is not None and only_node(one) != pod.spec.node_name for one in there)
    wanted = [one.metadata.name for one in there if one.status.allocation is None]
    if len(there) == len(claims) and wanted and not is_elsewhere and _fit(world, wanted, pod.spec.node_name):
        raise ViolationError(f"{pod.key} was made on {pod.spec.node_name}, and its claims could be allocated there")


def _is_impossible(world: World, claim: ResourceClaim, pod: Pod) -> bool:
    """Whether a claim that users deleted and made again is asked for by a pod that is on a full node."""
    return _is_new(world, claim, pod) and not _fit(world, [claim.metadata.name], pod.spec.node_name)


def _fit(world: World, names: Iterable[str], node: str) -> bool:
    """Whether claims of these names could be allocated on a node at a time, beside all that are."""
    scenario, names = world.scenario, list(names)
    every = [device for claim in world.server.claims.values() for device in held(claim)]
    cards = sum(scenario.count(name) for name in names if name in scenario.nics)
    if cards > len({*world.around.usable_cards(node)} - {device for at, device in every if at == node}):
        return False
    names = [name for name in names if name not in scenario.nics]
    if scenario.divisions:
        there = scenario.hardware[node]
        own = (device for at, device in every if at == node and device in there.devices)
        return is_room_for(there, own, scenario.profiles_of(names))
    taken: Counter[Device] = Counter()
    for claim in world.server.claims.values():
        for device in held(claim):
            taken[device] += scenario.parts(claim.metadata.name)
    free = [WHOLE - taken[node, device] for device in scenario.devices[node]]
    whole = sum(scenario.count(name) for name in names if scenario.parts(name) == WHOLE)
    halves = sum(scenario.parts(name) != WHOLE for name in names)
    unbroken = free.count(WHOLE)
    return whole <= unbroken and halves <= free.count(1) + WHOLE * (unbroken - whole)


def _could_be_bound(world: World, pod: Pod) -> bool:
    keys = dict.fromkeys(entry.key or "" for entry in pod_claims(pod))
    claims = [world.server.claims.get(key) for key in keys]
    there = [claim for claim in claims if claim is not None and claim.metadata.deletion_timestamp is None]
    if len(there) < len(claims) or _shares_with_one_on_a_node(world, keys):
        return False
    wanted = [claim.metadata.name for claim in there if claim.status.allocation is None]
    if not _is_within_quota(world, pod.metadata.namespace, wanted):
        return False
    for node in world.scenario.node_names:
        if (pod.metadata.name, node) in world.unfit:
            continue
        if any(claim.status.allocation is not None and only_node(claim) != node for claim in there):
            continue
        if world.scenario.cores and not _has_cores(world, pod, node):
            continue
        if _fit(world, wanted, node):
            return True
    return False


def _shares_with_one_on_a_node(world: World, keys: Iterable[str]) -> bool:
    """Whether a claim is also that of a pod that was made on a node: it may only go there, where it may not fit."""
    made = (world.server.pods.get(world.scenario.key(name)) for name in world.scenario.on)
    named = {entry.key for pod in made if pod is not None for entry in pod_claims(pod)}
    return not named.isdisjoint(keys)


def _counts_on(world: World, pod: Pod, node: str) -> bool:
    """Whether a pod is on a node, or has a reservation there."""
    if pod.spec.node_name or pod.status.phase in ENDED:
        return pod.spec.node_name == node and pod.status.phase not in ENDED
    claims = (world.server.claims.get(entry.key or "") for entry in pod_claims(pod))
    return any(claim is not None and is_reserved_for(claim, pod) and only_node(claim) == node for claim in claims)


def _has_cores(world: World, pod: Pod, node: str) -> bool:
    """Whether a node has the cores for a pod, or would have without pods of lower priority."""
    others = [one for one in world.server.pods.values() if _counts_on(world, one, node) and one.key != pod.key]
    keys = {entry.key for entry in pod_claims(pod)}
    is_shared = any(
        entry.key in keys for other in world.server.pods.values() if other.key != pod.key for entry in pod_claims(other)
    )
    if not is_shared:
        others = [one for one in others if one.spec.priority >= pod.spec.priority]
    asked = sum(world.scenario.cpu[one.metadata.name] for one in (*others, pod))
    return asked <= world.scenario.cores


def check_collisions(world: World, process: Process) -> None:
    """Raise ViolationError when two claims have one device and none of those that could gives way.

    For a process that has seen everything and done all there is to do now. Nothing that is bound can give way, nor can
    what kube-scheduler allocated itself; and a pod that misses a claim, or is to go, is nobody's rival.
    """
    claims = [claim for claim in world.server.claims.values() if claim.status.allocation is not None]
    records = process.controller.parts.cluster._state.records
    for index, claim in enumerate(claims):
        for other in claims[:index]:
            able = [one for one in (claim, other) if _can_give_way(world, one)]
            if not _collide(world, claim, other) or not able or _is_left(world, claim) or _is_left(world, other):
                continue
            if any(_is_put_off(process, one) for one in (claim, other)):
                continue
            # One that gives way has lost its reservation after the first of two writes, and is not among the able then.
            both = [records.claim(one.key) for one in (claim, other)]
            if any(record is not None and record.ending for record in both):
                continue
            known = [records.claim(one.key) for one in able]
            if all(record is not None and record.phase is Phase.ALLOCATED and not record.ending for record in known):
                raise ViolationError(f"{claim.key} and {other.key} have one device, and none gives way")


def _collide(world: World, claim: ResourceClaim, other: ResourceClaim) -> bool:
    """Whether two claims have more of one GPU than there is."""
    owners: dict[Device, dict[str, set[str]]] = {}
    for one in (claim, other):
        _note(world, owners, one.key, () if one.metadata.name in world.scenario.nics else held(one))
    return any(len(both) > 1 and _is_too_much(world, gpu, both) for gpu, both in owners.items())


def _is_put_off(process: Process, claim: ResourceClaim) -> bool:
    """Whether a pod of a claim is looked at a little later, because its last try failed, or nobody names the claim and
    it is cleared as unused."""
    queue, pods = process.controller.parts.queue, process.controller.parts.cluster._state.records.naming(claim.key)
    is_unused = not pods and not claim.status.reserved_for and our_node(claim, DRIVER) is not None
    return is_unused or any(key in queue._not_before for key in pods)


def _is_left(world: World, claim: ResourceClaim) -> bool:
    """Whether the pods that a claim is reserved for are all gone: nobody gets bound with it, and it is freed."""
    users = {user.uid for user in claim.status.reserved_for}
    return bool(users) and not users & {pod.metadata.uid for pod in world.server.pods.values() if not _is_over(pod)}


def _can_give_way(world: World, claim: ResourceClaim) -> bool:
    if our_node(claim, DRIVER) is None or len(claim.status.reserved_for) != 1:
        return False
    user = claim.status.reserved_for[0]
    pod = world.server.pods.get(world.scenario.key(user.name))
    if pod is None or pod.metadata.uid != user.uid or pod.spec.node_name or _is_over(pod):
        return False
    claims = [world.server.claims.get(entry.key or "") for entry in pod_claims(pod)]
    return all(one is not None and one.metadata.deletion_timestamp is None for one in claims)


def _holds_what_the_server_holds(world: World, process: Process) -> None:
    cluster = process.controller.parts.cluster
    for record in cluster._state.records.claims():
        devices, others = record.held(DRIVER)
        held_here = devices, frozenset(one for one in others if one.device.driver == DRIVER)
        if cluster._state.inventory.holdings.held_by(claim_holder(record.shown)) != held_here:
            raise ViolationError(f"{process.name} has other books than records of {record.key}")
        kept = {(device.pool, device.device) for device in held_here[0]}
        if kept - held(world.server.claims.get(record.key)):
            raise ViolationError(f"{process.name} keeps {sorted(kept)} of {record.key}, which nobody uses")


def _is_over(pod: Pod) -> bool:
    return pod.status.phase in ENDED or (pod.metadata.deletion_timestamp is not None and not pod.spec.node_name)
