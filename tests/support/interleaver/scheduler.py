"""kube-scheduler 1.36 (schedule_one.go, plugins/dynamicresources): its lagging view, one try at a time for each pod.

A try looks at the claims once (PreFilter, Filter). What finds no node ends in PostFilter and words about the pod; what
finds one is bound in the background, for as long as Permit, volumes and the like take, while other pods are tried.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from dracaena.api.objects import ENDED, Pod, PodCondition
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.lifecycle.claim_record import only_node
from dracaena.kube.errors import ConflictError, KubeError
from support.interleaver.server import Kind, Server, is_reserved_for, owner_uid, reference, with_status

if TYPE_CHECKING:
    from support.interleaver.world import World

SEEN_S: Final = 1.9
"""A change is in its view after this time: what Bounds.settle_s promises the controller."""

BIND_RETRIES: Final = 5
"""client-go's retry.DefaultRetry."""

Try = Generator[str, None, str]
"""Yields, before each of its requests, what it is about to do; returns how it ended."""

Requests = Generator[str, None, None]


class View:
    """An informer's cache of claims and pods, behind by any time up to SEEN_S."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.at: dict[Kind, int] = {Pod: 0, ResourceClaim: 0}
        self.pods: dict[str, Pod] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.gone: set[str] = set()
        """UIDs of pods that were seen to go, ..."""
        self.gone_claims: set[str] = set()
        """... and of claims."""

    def is_behind(self, kind: Kind) -> bool:
        return self.at[kind] < len(self._server.history[kind])

    def see(self, kind: Kind) -> None:
        """See the next change of a kind."""
        change = self._server.history[kind][self.at[kind]]
        self.at[kind] += 1
        if isinstance(change.item, ResourceClaim):
            self.claims[change.key] = change.item
        elif kind is ResourceClaim:
            self.gone_claims.add(self.claims.pop(change.key).metadata.uid)
        else:
            old = self.pods.pop(change.key, None)
            if change.item is not None:
                self.pods[change.key] = change.item
            if old is not None and (change.item is None or change.item.metadata.uid != old.metadata.uid):
                self.gone.add(old.metadata.uid)

    def see_until(self, at_s: float) -> None:
        """See all that happened until a time."""
        for kind in (Pod, ResourceClaim):
            history = self._server.history[kind]
            while self.at[kind] < len(history) and history[self.at[kind]].at_s <= at_s:
                self.see(kind)


class Scheduler:
    """One kube-scheduler process. `trying` is the pod whose try is in front, `binding` those in the background."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._server = world.server
        self.view = View(world.server)
        self.trying: tuple[str, Try] | None = None
        self.binding: dict[str, Try] = {}
        self.since_s: dict[str, float] = {}
        self.about_to: dict[str, str] = {}
        self.unnamed: set[str] = set()
        """Pods in the background whose node it has not named yet."""
        self.bound: set[str] = set()  # UIDs that it bound, whether its view shows it or not
        self._assumed: dict[str, ResourceClaim] = {}
        self._going_to: dict[str, str] = {}  # UIDs of pods that it sent to a node → the node
        self._wrote_at: dict[
            str, int
        ] = {}  # pod → how far the view has to be before the next try: it took something away
        self._picks = random.Random(7)

    def can_try(self, key: str) -> bool:
        """Whether a pod may be tried: nothing of it is under way, and the view has it without a node."""
        pod = self.view.pods.get(key)
        if pod is None or self.trying is not None or key in self.binding or pod.spec.scheduling_gates:
            return False
        if self.view.at[ResourceClaim] < self._wrote_at.get(key, 0):
            return False  # a pod that failed backs off for a second or more, and informers are faster than that
        return not pod.spec.node_name and pod.metadata.deletion_timestamp is None and pod.metadata.uid not in self.bound

    def try_pod(self, key: str) -> str:
        """Look at a pod and its claims, up to the first request; return what comes next."""
        self.trying = (key, self._try(self.view.pods[key]))
        self.since_s[key] = self._server.now_s
        return self.go_on(key)

    def go_on(self, key: str) -> str:
        """Go on to the next request of a try, in front or in the background."""
        is_in_front = self.trying is not None and self.trying[0] == key
        steps = self.trying[1] if is_in_front and self.trying is not None else self.binding[key]
        try:
            said = next(steps)
        except StopIteration as end:
            said = str(end.value)
            if self.trying is not None and self.trying[0] == key:
                self.trying = None
            self.binding.pop(key, None)
            self.about_to.pop(key, None)
        else:
            self.about_to[key] = said
        return said

    def claim(self, key: str) -> ResourceClaim | None:
        """Return a claim as it sees it: what it wrote itself counts at once (the assume cache)."""
        seen, assumed = self.view.claims.get(key), self._assumed.get(key)
        if seen is None or assumed is None or seen.metadata.uid != assumed.metadata.uid:
            return seen
        newer = int(assumed.metadata.resource_version) > int(seen.metadata.resource_version)
        return assumed if newer else seen

    def _try(self, pod: Pod) -> Try:
        entries = pod_claims(pod)
        keys = list(dict.fromkeys(entry.key or "" for entry in entries))
        claims = [claim for claim in map(self.claim, keys) if claim is not None]
        if len(claims) < len(keys):
            yield from self._fail(pod, "waiting for resource claims to be created")
            return "a claim is missing"
        own = {entry.key for entry in entries if entry.generated}
        if any(claim.key in own and owner_uid(claim) != pod.metadata.uid for claim in claims):
            yield from self._fail(pod, "ResourceClaim was not created for the pod")
            return "a claim is another pod's"
        if any(claim.metadata.deletion_timestamp is not None for claim in claims):
            yield from self._fail(pod, "resourceclaim is being deleted")
            return "a claim is being deleted"
        if not self._has_its_group(pod):
            yield from self._fail(pod, "the group does not fit")
            return "its group does not fit"
        reasons, elsewhere, fitting = self._filter(pod, claims)
        if not fitting:
            yield from self._post_filter(pod, claims, elsewhere, ", ".join(sorted(reasons)))
            return "no node fits"
        node = fitting[0]
        devices = self._chosen(claims, node)
        assert self.trying is not None
        self.binding[pod.key] = self.trying[1]
        self.trying = None
        self._going_to[pod.metadata.uid] = node
        self.unnamed.add(pod.key)
        yield f"is about to bind it to {node}"
        self._nominate(pod, node)
        self.unnamed.discard(pod.key)
        yield "waits for Permit and volumes"
        bound = yield from self._pre_bind(pod, claims, node, devices)
        if bound:
            yield "binds"
            for claim in claims:
                stored = self._server.claims.get(claim.key)
                if stored is not None and stored.metadata.uid != claim.metadata.uid:
                    self._world.moved_under_a_bind(claim, stored, pod)
            bound = self._server.bind(pod.key, pod.metadata.uid, node)
        if bound:
            self.bound.add(pod.metadata.uid)
            return f"the pod is bound to {node}"
        del self._going_to[pod.metadata.uid]
        for claim in claims:
            if is_reserved_for(claim, pod):
                yield f"gives up and drops its reservation of {claim.metadata.name}"
                self._server.unreserve(claim.key, claim.metadata.uid, pod.metadata.uid)
                self._wrote_at[pod.key] = len(self._server.history[ResourceClaim])
        yield from self._fail(pod, "binding failed", reason="SchedulerError")
        return "the bind failed"

    def _has_its_group(self, pod: Pod) -> bool:
        """Whether all pods of a pod's group are there and have a node, or devices for all of their claims."""
        groups = self._world.scenario.groups
        group = groups.get(pod.metadata.name)
        if group is None:
            return True
        names = [name for name, of in groups.items() if of == group and name != pod.metadata.name]
        return all(self._is_ready(self.view.pods.get(self._world.scenario.key(name))) for name in names)

    def _is_ready(self, pod: Pod | None) -> bool:
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return False
        claims = [self.claim(claim.key or "") for claim in pod_claims(pod)]
        return bool(pod.spec.node_name) or all(one is not None and one.status.allocation for one in claims)

    def _filter(self, pod: Pod, claims: list[ResourceClaim]) -> tuple[set[str], list[ResourceClaim], list[str]]:
        """Return the reasons against nodes, the claims that are allocated elsewhere, and the nodes that fit."""
        reasons: set[str] = set()
        elsewhere: dict[str, ResourceClaim] = {}
        fitting = []
        for node in self._world.scenario.node_names:
            away = [claim for claim in claims if claim.status.allocation is not None and only_node(claim) != node]
            if self._world.around.is_closed(node):
                reasons.add("node(s) were unschedulable")
            elif (pod.metadata.name, node) in self._world.unfit:
                reasons.add("Insufficient cpu" if not self._world.scenario.cores else "a reason of its own")
            elif not self._has_room(pod, node):
                reasons.add("Insufficient cpu")
            elif away:
                reasons.add("resourceclaim not available on the node")
                elsewhere |= {claim.key: claim for claim in away}
            elif self._chosen(claims, node) is None:
                reasons.add("cannot allocate all claims")
            else:
                fitting.append(node)
        return reasons, list(elsewhere.values()), fitting

    def _chosen(self, claims: list[ResourceClaim], node: str) -> dict[str, tuple[str, ...]] | None:
        """Return the devices for claims that are not allocated: network cards, and for a claim that tolerates our taint
        those of ours."""
        taken = {
            (result.pool, result.device)
            for claim in map(self.claim, self.view.claims)
            if claim is not None and claim.status.allocation is not None
            for result in claim.status.allocation.devices.results
        }
        chosen: dict[str, tuple[str, ...]] = {}
        for claim in claims:
            if claim.status.allocation is not None:
                continue
            scenario = self._world.scenario
            is_for_cards = claim.metadata.name in scenario.nics
            there = self._world.around.usable_cards(node) if is_for_cards else scenario.devices[node]
            free = [device for device in there if (node, device) not in taken]
            count = scenario.claims[claim.metadata.name] if is_for_cards else scenario.tolerant.get(claim.metadata.name)
            if count is None or len(free) < count:
                return None
            chosen[claim.key] = tuple(free[:count])
            taken |= {(node, device) for device in free[:count]}
        return chosen

    def _post_filter(self, pod: Pod, claims: list[ResourceClaim], elsewhere: list[ResourceClaim], why: str) -> Requests:
        free = [claim for claim in elsewhere if all(user.uid == pod.metadata.uid for user in claim.status.reserved_for)]
        if free:
            claim = self._picks.choice(free)
            yield f"clears {claim.metadata.name}"
            try:
                self._server.update_claim(with_status(claim, allocation=None, reserved_for=[], devices=[]))
                self._wrote_at[pod.key] = len(self._server.history[ResourceClaim])
                self._world.cleared_by_others(claim, pod)
            except KubeError as error:
                yield from self._fail(pod, str(error), reason="SchedulerError", nominated=None)
                return
        nominated = yield from self._preempt(pod, claims)
        why = f"0/{len(self._world.scenario.node_names)} nodes are available: {why}"
        yield from self._fail(pod, why, nominated=nominated)

    def _preempt(self, pod: Pod, claims: list[ResourceClaim]) -> Generator[str, None, str | None]:
        """Evict pods of lower priority on one node; return that node, None when nothing is to change, and nothing when
        it helps nowhere (framework/preemption, plugins/defaultpreemption). What the attempt read before counts: that a
        claim was cleared meanwhile it does not see."""
        if not self._world.scenario.cores:
            return ""
        seen = self.view.pods.get(pod.key)
        if seen is None:
            return None
        named = seen.status.nominated_node_name
        if any(victim.metadata.deletion_timestamp is not None for victim in self._lower(pod, named)):
            return None
        on = {node: self._victims(pod, claims, node) for node in self._world.scenario.node_names}
        found = [node for node, victims in on.items() if victims]
        if not found:
            return ""
        node = min(found, key=lambda one: (max(victim.spec.priority for victim in on[one]), len(on[one])))
        for victim in on[node]:
            yield f"evicts {victim.metadata.name} on {node}"
            stored = self._server.pods.get(victim.key)
            if stored is not None and stored.metadata.uid == victim.metadata.uid:
                self._server.delete(Pod, victim.key)
        self._world.preempted(pod, claims)
        return node

    def _victims(self, pod: Pod, claims: list[ResourceClaim], node: str) -> list[Pod]:
        """Return whom to evict on a node; nobody where that does not help, or nobody is in the way."""
        away = any(claim.status.allocation is not None and only_node(claim) != node for claim in claims)
        if (pod.metadata.name, node) in self._world.unfit or away or self._chosen(claims, node) is None:
            return []
        lower = sorted(self._lower(pod, node), key=lambda victim: (-victim.spec.priority, victim.key))
        if not self._has_room(pod, node, without=lower):
            return []
        victims = list(lower)
        for one in lower:
            left = [victim for victim in victims if victim is not one]
            if self._has_room(pod, node, without=left):
                victims = left
        return victims

    def _lower(self, pod: Pod, node: str) -> list[Pod]:
        there = (one for one in self.view.pods.values() if one.spec.node_name == node and _runs(one))
        return [one for one in there if one.spec.priority < pod.spec.priority]

    def _has_room(self, pod: Pod, node: str, without: Sequence[Pod] = ()) -> bool:
        """Whether a node has the cores for a pod beside those that are there, on their way, or nominated for it and no
        less important."""
        scenario, gone = self._world.scenario, {one.metadata.uid for one in without}
        if not scenario.cores:
            return True
        used = 0
        for one in self.view.pods.values():
            if one.metadata.uid in gone or one.metadata.uid == pod.metadata.uid or not _runs(one):
                continue
            at = one.spec.node_name or self._going_to.get(one.metadata.uid, "")
            is_nominated = not at and one.status.nominated_node_name == node and one.spec.priority >= pod.spec.priority
            used += scenario.cpu[one.metadata.name] if at == node or is_nominated else 0
        return used + scenario.cpu[pod.metadata.name] <= scenario.cores

    def _nominate(self, pod: Pod, node: str) -> None:
        stored = self._server.pods.get(pod.key)
        if stored is None or stored.metadata.uid != pod.metadata.uid or stored.status.nominated_node_name == node:
            return
        status = msgspec.structs.replace(stored.status, nominated_node_name=node)
        self._server.update_pod(msgspec.structs.replace(stored, status=status))

    def _pre_bind(
        self, pod: Pod, claims: list[ResourceClaim], node: str, devices: dict[str, tuple[str, ...]] | None
    ) -> Generator[str, None, bool]:
        """Write the reservations that the view at PreFilter did not show, and allocations of its own."""
        for index, claim in enumerate(claims):
            if is_reserved_for(claim, pod):
                continue
            current: ResourceClaim | None = claim
            for _ in range(BIND_RETRIES):
                yield f"reserves {claim.metadata.name}"
                if current is None:
                    return False
                try:
                    stored = self._reserve(current, pod, node, (devices or {}).get(claim.key))
                except ConflictError:
                    current = self._server.claims.get(claim.key)
                    continue
                except KubeError:
                    return False
                if stored is None:
                    return False
                claims[index] = self._assumed[stored.key] = stored
                if only_node(stored) != node:
                    self._world.moved_under_a_bind(claim, stored, pod)
                break
            else:
                return False
        return True

    def _reserve(
        self, claim: ResourceClaim, pod: Pod, node: str, devices: tuple[str, ...] | None
    ) -> ResourceClaim | None:
        if claim.metadata.deletion_timestamp is not None or (claim.status.allocation is None) is (devices is None):
            return None
        if devices is not None:
            claim = self._world.allocated_by_scheduler(claim, node, devices)
        users = [*claim.status.reserved_for, reference(pod)]
        return self._server.update_claim(with_status(claim, reserved_for=users))

    def _fail(self, pod: Pod, why: str, reason: str = "Unschedulable", nominated: str | None = "") -> Requests:
        """Say it in the condition, if that differs from what its view has there (updatePod), and name a node, none, or,
        with None, leave what is there."""
        yield f"says: {why}"
        seen = self.view.pods.get(pod.key)
        stored = self._server.pods.get(pod.key)
        if seen is None or seen.metadata.uid != pod.metadata.uid or seen.spec.node_name:
            return
        if stored is None or stored.metadata.uid != pod.metadata.uid:
            return
        had = next((one for one in seen.status.conditions if one.type == "PodScheduled"), PodCondition("PodScheduled"))
        said = PodCondition("PodScheduled", "False", reason, why)
        fields = [name for name in PodCondition.__struct_fields__ if getattr(had, name) != getattr(said, name)]
        names = nominated is not None and seen.status.nominated_node_name != nominated
        if not fields and not names:
            return
        now = next(
            (one for one in stored.status.conditions if one.type == "PodScheduled"), PodCondition("PodScheduled")
        )
        changed = msgspec.structs.replace(now, **{name: getattr(said, name) for name in fields})
        node = nominated if names and nominated is not None else stored.status.nominated_node_name
        status = msgspec.structs.replace(stored.status, conditions=[changed], nominated_node_name=node)
        if status != stored.status:
            self._server.update_pod(msgspec.structs.replace(stored, status=status))


def _runs(pod: Pod) -> bool:
    return pod.status.phase not in ENDED
