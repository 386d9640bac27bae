"""All of a cluster, and the steps that it can take: each has a name, by which a schedule can be taken again."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Final

import msgspec

from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import ENDED, Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import AllocatedDevices, AllocationResult, DeviceResult, ResourceClaim
from dracaena.controller.lifecycle.phases import Phase
from dracaena.kube.client import WRITE_TIMEOUT_S
from dracaena.kube.errors import ApiUnavailableError, KubeError
from dracaena.process.clock import rfc3339
from support.allocation import DRIVER
from support.interleaver.claim_controller import ClaimController, Work
from support.interleaver.process import GATE, LONGEST_BIND_S, START, Call, Process, SteppedController
from support.interleaver.scenario import Scenario, entry_of
from support.interleaver.scheduler import SEEN_S, Scheduler, View
from support.interleaver.server import Kind, Server
from support.interleaver.strands import Strand
from support.interleaver.surroundings import Surroundings
from support.other_drivers import NIC_DRIVER

WORKERS: Final = ("w0", "w1")

NOTE: Final = f"{DRIVER}/decision"
"""An annotation that looks as if the controller had written it."""

LEAPS_S: Final = (0.4, 2.5, 6.0, 12.0, 31.0)
"""Below and above what the controller waits for: settle, refusal, doubt, no reservation."""

LEAPS: Final = tuple(
    (weight, leap_s, f"{leap_s} s pass") for weight, leap_s in zip((0.7, 0.7, 1.2, 0.5, 0.4), LEAPS_S, strict=True)
)


class ViolationError(Exception):
    """Something does not hold that must."""


@dataclass(frozen=True, slots=True)
class Late:
    """A write that its client gave up, and that the server may still carry out."""

    call: Call
    until_s: float


@dataclass(frozen=True, slots=True)
class Excused:
    """A pod that is bound, or being bound, with a shared claim that another pod's PostFilter cleared, or
    kube-controller-manager because its last user ended."""

    pod_uid: str
    claim_key: str
    node: str
    devices: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Room:
    """What kube-scheduler cleared in the attempt in which it evicted pods for that pod."""

    pod_key: str
    pod_uid: str
    claim_key: str
    devices: frozenset[tuple[str, str]]
    at_s: float


@dataclass(frozen=True, slots=True)
class Checked:
    """What was last found right."""

    version: int
    """Of all that the server has."""
    calls: Sequence[Call]
    """Writes that could still land."""


Candidate = tuple[float, str]


class World:
    """One cluster. `steps()` says what can happen next, `take()` has it happen, and `said` is the story."""

    def __init__(self, scenario: Scenario, controller_type: type[SteppedController] = SteppedController) -> None:
        self.scenario = scenario
        self.server = Server()
        self.around = Surroundings(scenario, self.server)
        self.unfit = set(scenario.unfit)
        self.scheduler = Scheduler(self)
        self.claim_controller = ClaimController(self.server, self.cleared_by_others, self._generate)
        self.made_late: set[str] = set()
        """UIDs of claims that were made from a template for a pod that was on a node."""
        self.late: list[Late] = []
        self.foreign: set[tuple[str, str]] = set()
        """(claim UID, allocationTimestamp) of what kube-scheduler allocated."""
        self.excused: list[Excused] = []
        self.rooms: list[Room] = []
        """As far as the process that leads knows of it."""
        self.moved: set[tuple[str, str]] = set()
        """(pod UID, claim key) of binds with a claim that was allocated elsewhere, or made again, meanwhile."""
        self.known_to_writer: dict[tuple[str, str], frozenset[str]] = {}
        """(claim UID, allocationTimestamp) → UIDs of the pods that the writer knew when the claim became free."""
        self.said: list[str] = []
        self.checked: Checked | None = None
        self._users_steps: tuple[object, Sequence[Candidate]] = None, ()
        self._made = 0
        self._generated: Counter[str] = Counter()
        self._controller_type = controller_type
        self._offsets = count(0, 1_000)
        self.processes: dict[str, Process | None] = {}
        for index in range(scenario.processes):
            self.processes[f"p{index}"] = self._process(f"p{index}")
        first = self.processes["p0"]
        assert first is not None
        first.begin()
        while "start" in first.strands:
            self._go_on(first, "start")

    # What can happen

    def steps(self) -> list[Candidate]:
        """Return the steps that can be taken now, each with a weight."""
        found = [*self._users(), *self._others(), *self.around.steps()]
        for process in self.processes.values():
            if process is not None:
                self._add_steps_of(process, found)
        found += ((1.5, f"{name} is started again") for name, process in self.processes.items() if process is None)
        if self.late:
            found.append((0.8, "a late write lands"))
        longest_s = self.longest_leap_s()
        found += ((weight, step) for weight, leap_s, step in LEAPS if leap_s <= longest_s)
        return found

    def longest_leap_s(self) -> float:
        """Return how much time may pass: no bind takes longer than any does, and an attempt that has looked at the
        claims names its node in the pod within the time in which it would see a change of them."""
        scheduler = self.scheduler
        under_way = [*scheduler.binding, *([scheduler.trying[0]] if scheduler.trying else [])]
        ends_s = [scheduler.since_s[key] + LONGEST_BIND_S for key in under_way]
        ends_s += [scheduler.since_s[key] + SEEN_S for key in scheduler.unnamed]
        return min(ends_s, default=self.server.now_s + LONGEST_BIND_S) - self.server.now_s

    def _users(self) -> Sequence[Candidate]:
        """Return what users can do, which only changes with what the server has, and with whom kube-scheduler refuses.
        Nearly half of all steps change neither."""
        state = self.server.version, frozenset(self.unfit)
        if self._users_steps[0] != state:
            self._users_steps = state, tuple(self._steps_of_users())
        return self._users_steps[1]

    def _steps_of_users(self) -> Iterator[Candidate]:
        for name in self.scenario.claims:
            if name not in self.scenario.generated:
                stored = self.server.claims.get(self.scenario.key(name))
                yield from self._with_claim(name, stored)
        if self.scenario.generated:
            for stored in self.server.claims.values():
                if entry_of(stored.metadata.name) in self.scenario.generated:
                    yield from self._with_claim(stored.metadata.name, stored)
        for name in self.scenario.pods:
            pod = self.server.pods.get(self.scenario.key(name))
            if pod is None:
                yield 1.5, f"users create pod {name}"
                continue
            if pod.metadata.deletion_timestamp is None:
                yield 0.15, f"users delete pod {name}"
            else:
                yield 1.0, f"kubelet removes pod {name}"
            if pod.spec.scheduling_gates and name not in self.scenario.at_our_gate:
                yield 0.8, f"users ungate pod {name}"
            if pod.spec.node_name and pod.status.phase not in ENDED:
                yield 0.3, f"pod {name} ends"
            if not pod.spec.node_name:
                for node in self.scenario.node_names:
                    word = "takes" if (name, node) in self.unfit else "refuses"
                    yield 0.15, f"kube-scheduler {word} {name} on {node}"

    def _with_claim(self, name: str, stored: ResourceClaim | None) -> Iterator[Candidate]:
        if stored is None:
            yield 2.0, f"users create claim {name}"
        elif stored.metadata.deletion_timestamp is None:
            yield 0.05, f"users delete claim {name}"
            if self.scenario.writing:
                yield 0.3, f"users annotate claim {name}"
                yield 0.2, f"users replace claim {name}"

    def _others(self) -> Iterator[Candidate]:
        scheduler, controller = self.scheduler, self.claim_controller
        wanted = controller.wanted()
        for kind in (ResourceClaim, Pod):
            if scheduler.view.is_behind(kind):
                yield 2.0, f"kube-scheduler sees {kind.RESOURCE}"
            if controller.view.is_behind(kind):
                yield 1.0, f"controller-manager sees {kind.RESOURCE}"
        for key in self.server.pods:
            name = key.partition("/")[2]
            if scheduler.can_try(key):
                yield 1.2, f"kube-scheduler tries {name}"
            if key in scheduler.binding:
                yield 0.8, f"kube-scheduler goes on with {name}"
            if controller.under_way is None and key in wanted.pods:
                yield 1.0, f"controller-manager looks at pod {name}"
        if scheduler.trying is not None:
            yield 3.0, f"kube-scheduler goes on with {scheduler.trying[0].partition('/')[2]}"
        if scheduler.binding or scheduler.trying:
            yield 0.1, "kube-scheduler is started again"
        for key in wanted.collected:
            yield 0.7, f"controller-manager collects {key.partition('/')[2]}"
        if controller.under_way is not None:
            yield 2.0, "controller-manager goes on"
            return
        for key in self.server.claims:
            if key in wanted.claims:
                yield 1.0, f"controller-manager looks at claim {key.partition('/')[2]}"

    def _add_steps_of(self, process: Process, found: list[Candidate]) -> None:
        name, strands, is_open = process.name, process.strands, process.controller.parts.work.is_open
        for cache in process.caches.values():
            is_behind = cache.is_behind
            if not (is_behind or strands):
                continue
            listing = f"list {cache.resource}"
            if listing in strands:
                found.append((3.0, f"{name} goes on with {listing}"))
            elif is_behind:
                found.append((3.0, f"{name} sees {cache.resource}"))
                found.append((0.15, f"{name} has to {listing}"))
        if self.may_begin(process):
            found.append((3.0, f"{name} begins to lead"))
        if "start" in strands:
            found.append((3.0, f"{name} goes on with start"))
        for worker in (*WORKERS, GATE) if is_open or strands else ():
            strand = strands.get(worker)
            if strand is None:
                if is_open and self._has_work_for(process, worker):
                    found.append((3.0, f"{name} {worker} takes work"))
                continue
            call = strand.waits_for
            found.append((3.0, f"{name} {worker} goes on"))
            if isinstance(call, Call) and not call.is_sent:
                found.append((0.1, f"{name} {worker} gets 429"))
                found.append((0.1, f"{name} {worker} gets no answer, and nothing arrives"))
                if call.is_write:
                    found.append((0.25, f"{name} {worker} gets no answer, and it is done"))
                    found.append((0.5, f"{name} {worker} gets no answer, and it may be done later"))
        if is_open and self.scenario.groups:
            found.append((1.0, f"{name} reviews groups"))
        found.append((0.06, f"{name} crashes"))
        if process.leads:
            found.append((0.04, f"{name} loses its lease"))
        found.append((0.04, f"{name} sets its time of day forward"))
        found.append((0.04, f"{name} sets its time of day back"))

    def _has_work_for(self, process: Process, worker: str) -> bool:
        if not process.controller.parts.work.is_open:
            return False
        return process.has_gates_to_remove() if worker == GATE else process.has_ready_work()

    def may_begin(self, process: Process) -> bool:
        """Whether no write of an older leader can land any more (controller/leader/election.py). Its process may live
        and its workers go on."""
        others = [one for one in self.processes.values() if one is not None and one is not process]
        if process.leads or process.has_led or self.late or any(one.leads or one.writes() for one in others):
            return False
        return not any(name.startswith("list") for name in process.strands)

    # What happens

    def take(self, step: str) -> bool:
        """Take a step by its name; return False when it cannot be taken now. What follows from it is said."""
        words = step.split(" ")
        if words[0] in self.processes:
            return self._take_of(words[0], step, words)
        if words[0] == "users":
            return self._take_of_users(step, words)
        if words[0] in ("admins", "plugin", "nic-plugin"):
            return self.around.take(*words) and self._say(step)
        if words[0] == "kube-scheduler":
            return self._take_of_scheduler(step, words)
        if words[0] == "controller-manager":
            return self._take_of_controller(step, words)
        if step.endswith(" s pass"):
            return self._leap(float(words[0]))
        if step == "a late write lands":
            return self._land()
        pod = self.server.pods.get(self.scenario.key(words[-1] if words[0] == "kubelet" else words[1]))
        if pod is None:
            return False
        if words[0] == "kubelet":
            if pod.metadata.deletion_timestamp is None:
                return False
            self.server.remove(Pod, pod.key)
        else:
            if not pod.spec.node_name or pod.status.phase in ENDED:
                return False
            self.server.update_pod(
                msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Succeeded"))
            )
        return self._say(step)

    def _take_of_users(self, step: str, words: Sequence[str]) -> bool:
        verb, what, name = words[1:]
        kind: Kind = ResourceClaim if what == "claim" else Pod
        stored = self.server.objects(kind).get(self.scenario.key(name))
        known = self.scenario.claims if what == "claim" else self.scenario.pods
        if entry_of(name) not in known or (stored is None) is not (verb == "create"):
            return False
        if verb == "create" and entry_of(name) in self.scenario.generated:
            return False
        if verb == "ungate":
            if not isinstance(stored, Pod) or not stored.spec.scheduling_gates or name in self.scenario.at_our_gate:
                return False
            spec = msgspec.structs.replace(stored.spec, scheduling_gates=[])
            self.server.update_pod(msgspec.structs.replace(stored, spec=spec))
        elif verb == "create":
            self._made += 1
            make = self.scenario.claim if what == "claim" else self.scenario.pod
            self.server.create(make(name, self._made))
        elif verb in ("annotate", "replace"):
            if not isinstance(stored, ResourceClaim):
                return False
            self._write_metadata(stored, forges=verb == "annotate")
        else:
            self.server.delete(kind, self.scenario.key(name))
        return self._say(step)

    def _write_metadata(self, claim: ResourceClaim, *, forges: bool) -> None:
        """Note a decision of nobody on a claim, for any devices of a node; or replace its metadata with a manifest's,
        as `kubectl replace` does: what others wrote there is gone, finalizers too."""
        rng = random.Random(len(self.said))
        finalizers, notes = claim.metadata.finalizers if forges else [], {}
        if forges:
            node = rng.choice(self.scenario.node_names)
            devices = rng.sample(self.scenario.devices[node], rng.randint(1, len(self.scenario.devices[node])))
            notes = {NOTE: json.dumps({"node": node, "devices": devices})}
        metadata = msgspec.structs.replace(claim.metadata, annotations=notes, finalizers=finalizers)
        self.server.update_claim(msgspec.structs.replace(claim, metadata=metadata))

    def _take_of_scheduler(self, step: str, words: Sequence[str]) -> bool:
        scheduler = self.scheduler
        if words[1] == "sees":
            return self._see(scheduler.view, step, words[2])
        if words[1] in ("takes", "refuses"):
            (self.unfit.discard if words[1] == "takes" else self.unfit.add)((words[2], words[4]))
            return self._say(step)
        if words[1] == "is":
            self.scheduler = Scheduler(self)
            # Its first lists are consistent reads (client-go's WatchListClient, on since 1.35): with what the one
            # before it wrote.
            self.scheduler.view.see_until(self.server.now_s)
            return self._say(step)
        key = self.scenario.key(words[-1])
        if words[1] == "tries":
            if not scheduler.can_try(key):
                return False
            return self._say(f"{step}, and {scheduler.try_pod(key)}")
        if key not in scheduler.about_to:
            return False
        did = scheduler.about_to[key]
        return self._say(f"kube-scheduler, of {words[-1]}: {did}; then {scheduler.go_on(key)}")

    def _see(self, view: View, step: str, resource: str) -> bool:
        kind: Kind = Pod if resource == Pod.RESOURCE else ResourceClaim
        if not view.is_behind(kind):
            return False
        view.see(kind)
        return self._say(step)

    def _take_of_controller(self, step: str, words: Sequence[str]) -> bool:
        controller = self.claim_controller
        if words[1] == "sees":
            return self._see(controller.view, step, words[2])
        if words[1] == "goes":
            return controller.under_way is not None and self._controller_goes_on(controller.under_way)
        key = self.scenario.key(words[-1])
        if words[1] == "collects":
            if key not in self.server.claims or not controller.wants_collected(key):
                return False
            self.server.delete(ResourceClaim, key)
            return self._say(step)
        is_claim = words[3] == "claim"
        if controller.under_way is not None or not (controller.wants(key) if is_claim else controller.wants_pod(key)):
            return False
        return self._controller_goes_on(controller.sync(key) if is_claim else controller.sync_pod(key))

    def _controller_goes_on(self, work: Work) -> bool:
        did = next(work, None)
        self.claim_controller.under_way = work if did is not None else None
        return self._say(f"controller-manager {f'is about to: {did}' if did is not None else 'is done'}")

    def _take_of(self, name: str, step: str, words: Sequence[str]) -> bool:
        process = self.processes[name]
        if process is None:
            if words[1:] != ["is", "started", "again"]:
                return False
            self.processes[name] = self._process(name)
            return self._say(step)
        if words[1] == "reviews":
            if not process.controller.parts.work.is_open:
                return False
            process.controller.parts.cluster.review_groups(process.clock.monotonic())
            return self._say(step)
        if words[1] in (*WORKERS, GATE):
            return self._take_of_worker(process, words[1], " ".join(words[2:]), step)
        if words[1] == "sees":
            cache = process.caches[words[2]]
            if f"list {words[2]}" in process.strands or not cache.is_behind:
                return False
            change = cache.deliver()
            return self._say(f"{name} sees {described(change.key, change.item)}")
        if words[1] == "has":
            cache = process.caches[words[4]]
            listing = f"list {words[4]}"
            if listing in process.strands or "start" in process.strands:
                return False
            process.relist(cache, listing)
            self._say(f"{name}: its watch of {words[4]} breaks, and it lists them")
            self._go_on(process, listing)
            return True
        if words[1] == "goes":
            strand = " ".join(words[4:]) if words[3] == "with" else ""
            if strand not in process.strands:
                return False
            self._say(step)
            self._go_on(process, strand)
            return True
        if words[1] == "begins":
            if not self.may_begin(process):
                return False
            self._say(step)
            process.begin()
            self._go_on(process, "start")
            return True
        if words[1] == "sets":
            process.clock.jumped_s += 7.0 if words[-1] == "forward" else -7.0
            return self._say(step)
        if words[1] == "loses":
            if not process.leads:
                return False
            process.leads = False
            self.rooms.clear()
            return self._say(step)
        if words[1] == "crashes":
            self._crash(process)
            return self._say(step)
        return False

    def _take_of_worker(self, process: Process, worker: str, how: str, step: str) -> bool:
        strand = process.strands.get(worker)
        if how == "takes work":
            if strand is not None or not self._has_work_for(process, worker):
                return False
            process.take_work(worker)
            return self._go_on(process, worker)
        if strand is None:
            return False
        call = strand.waits_for
        if how == "goes on":
            if isinstance(call, Call) and not call.is_sent:
                return self._send(call, f"{process.name} {worker}")
            return self._go_on(process, worker)
        if not isinstance(call, Call) or call.is_sent:
            return False
        return self._send_badly(process, worker, call, how, step)

    def _send(self, call: Call, who: str) -> bool:
        call.is_sent = True
        try:
            call.outcome = call.run()
        except KubeError as error:
            call.error = error
        what = "" if call.error is None else f", refused: {call.error.reason}"
        return self._say(f"{who}: {call.text} arrives{what}")

    def _send_badly(self, process: Process, worker: str, call: Call, how: str, step: str) -> bool:
        if how == "gets 429":
            call.is_sent = True
            call.error = ApiUnavailableError(call.text, 429, "TooManyRequests", "try again")
        elif how == "gets no answer, and it is done" and call.is_write:
            self._send(call, f"{process.name} {worker}")
            call.error = _no_answer(call)
        elif how == "gets no answer, and it may be done later" and call.is_write:
            call.is_sent = True
            self.late.append(Late(call, self.server.now_s + WRITE_TIMEOUT_S))
            call.error = _no_answer(call)
        elif how == "gets no answer, and nothing arrives":
            call.is_sent = True
            call.error = _no_answer(call)
        else:
            return False
        self._say(f"{process.name} {worker}: {call.text} {how}")
        return self._go_on(process, worker)

    def _go_on(self, process: Process, name: str) -> bool:
        strand = process.strands[name]
        strand.step()
        if strand.done:
            del process.strands[name]
            if strand.error is not None:
                raise ViolationError(f"{strand.name}: {strand.error!r}") from strand.error
        said = "is done" if strand.done else _waiting(strand)
        return self._say(f"{strand.name} {said}")

    def _crash(self, process: Process) -> None:
        for strand in process.strands.values():
            call = strand.waits_for
            if isinstance(call, Call) and call.is_write and not call.is_sent:
                self.late.append(Late(call, self.server.now_s + WRITE_TIMEOUT_S))
        process.crash()
        self.rooms.clear()
        self.processes[process.name] = None

    def _land(self) -> bool:
        if not self.late:
            return False
        late = self.late.pop(0)
        try:
            late.call.run()
        except KubeError as error:
            return self._say(f"the late {late.call.text} is refused: {error.reason}")
        return self._say(f"the late {late.call.text} lands")

    def _leap(self, leap_s: float) -> bool:
        if leap_s > self.longest_leap_s():
            return False
        self.server.now_s += leap_s
        self.late = [late for late in self.late if late.until_s >= self.server.now_s]
        self.scheduler.view.see_until(self.server.now_s - SEEN_S)
        return self._say(f"{leap_s} s pass (now {self.server.now_s:.1f} s)")

    # What kube-scheduler does that matters to the checks

    def allocated_by_scheduler(self, claim: ResourceClaim, node: str, devices: Sequence[str]) -> ResourceClaim:
        """Return a claim with an allocation of kube-scheduler's own."""
        request, driver = ("nic", NIC_DRIVER) if claim.metadata.name in self.scenario.nics else ("gpus", DRIVER)
        results = [DeviceResult(request=request, driver=driver, pool=node, device=device) for device in devices]
        rule = {"key": "metadata.name", "operator": "In", "values": [node]}
        at = rfc3339(START + timedelta(seconds=self.server.now_s))
        selector = {"nodeSelectorTerms": [{"matchFields": [rule]}]}
        allocation = AllocationResult(AllocatedDevices(results), selector, at)
        finalizers = [*claim.metadata.finalizers]
        if DELETE_PROTECTION_FINALIZER not in finalizers:
            finalizers.append(DELETE_PROTECTION_FINALIZER)
        metadata = msgspec.structs.replace(claim.metadata, finalizers=finalizers)
        self.foreign.add((claim.metadata.uid, at))
        status = msgspec.structs.replace(claim.status, allocation=allocation)
        return msgspec.structs.replace(claim, metadata=metadata, status=status)

    def cleared_by_others(self, claim: ResourceClaim, by: Pod | None = None) -> None:
        """A pod's PostFilter cleared a claim, or kube-controller-manager: others may be on their way to a node with it,
        or there."""
        assert claim.status.allocation is not None
        devices = held(claim)
        node = next(iter(devices))[0]
        for pod in self.server.pods.values():
            names_it = any(entry.key == claim.key for entry in pod_claims(pod))
            is_there = pod.spec.node_name == node or pod.key in self.scheduler.binding
            if (by is None or pod.metadata.uid != by.metadata.uid) and names_it and is_there:
                self.excused.append(Excused(pod.metadata.uid, claim.key, node, devices))

    def preempted(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """kube-scheduler evicted pods for a pod: what it cleared in the same attempt stays the pod's, if the leader
        allocated it for that."""
        leaders = [process for process in self.processes.values() if process is not None and process.leads]
        for claim in claims:
            stored = self.server.claims.get(claim.key)
            if not held(claim) or stored is None or stored.status.allocation is not None or len(leaders) != 1:
                continue
            known = leaders[0].controller.parts.cluster._state.records.claim(claim.key)
            if known is not None and (known.is_preempting or known.phase is Phase.KEPT) and not known.ending:
                self.rooms.append(Room(pod.key, pod.metadata.uid, claim.key, held(claim), self.server.now_s))

    def moved_under_a_bind(self, began_with: ResourceClaim, claim: ResourceClaim, pod: Pod) -> None:
        """A bind that was refused read the claim again, and reserved what it found: an allocation on another node.

        Nobody but kube-scheduler can prevent that when it made either allocation itself (what it cleared of its own
        leaves no trace that a new leader could wait for), or when users made a new claim of the name meanwhile; nor can
        a controller whose watch had not shown the pod when it allocated (known gaps of
        docs/design/allocation-lifecycle.md).
        """
        is_foreign = self._is_foreign(began_with) or self._is_foreign(claim)
        if is_foreign or claim.metadata.uid != began_with.metadata.uid or not self._was_known(pod, claim):
            self.moved.add((pod.metadata.uid, claim.key))

    def _is_foreign(self, claim: ResourceClaim) -> bool:
        """Whether kube-scheduler made a claim's allocation."""
        allocation = claim.status.allocation
        return allocation is not None and (claim.metadata.uid, allocation.allocation_timestamp or "") in self.foreign

    def _was_known(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Whether whoever allocated a claim that way had been shown the pod before it lost its last allocation."""
        allocation = claim.status.allocation
        assert allocation is not None
        at = (claim.metadata.uid, allocation.allocation_timestamp or "")
        return pod.metadata.uid in self.known_to_writer.get(at, frozenset({pod.metadata.uid}))

    # Inside

    def _generate(self, name: str, pod: Pod) -> ResourceClaim:
        """Make and store a claim from a template."""
        self._made += 1
        self._generated[name] += 1
        claim = self.scenario.generate(name, self._made, self._generated[name], pod)
        stored = self.server.pods.get(pod.key)
        if stored is not None and stored.spec.node_name:
            self.made_late.add(claim.metadata.uid)
        return self.server.create(claim)

    def _process(self, name: str) -> Process:
        return Process(self, name, self._controller_type, offset_s=float(next(self._offsets)))

    def _say(self, text: str) -> bool:
        self.said.append(text)
        return True


def held(claim: ResourceClaim | None) -> frozenset[tuple[str, str]]:
    """Return (pool, device) of all that a claim has."""
    allocation = None if claim is None else claim.status.allocation
    return frozenset((one.pool, one.device) for one in allocation.devices.results) if allocation else frozenset()


def described(key: str, item: Any) -> str:
    """Say in words what state an object is in."""
    name = key.rpartition("/")[2]
    if item is None:
        return f"that {name} is gone"
    if not isinstance(item, Pod | ResourceClaim):
        return f"{item.KIND} {name} (version {item.metadata.resource_version})"
    going = ", going" if item.metadata.deletion_timestamp is not None else ""
    if isinstance(item, ResourceClaim):
        users = ", ".join(user.name for user in item.status.reserved_for) or "nobody"
        devices = held(item)
        has = f"on {next(iter(devices))[0]}, reserved for {users}" if devices else "free"
        return f"claim {name} {has}{going} (version {item.metadata.resource_version})"
    at = f"on {item.spec.node_name} {item.status.phase}" if item.spec.node_name else "unbound"
    said = next((f", {one.message!r}{' probed' if one.last_probe_time else ''}" for one in item.status.conditions), "")
    return f"pod {name} {at}{going}{said}"


def _waiting(strand: Strand) -> str:
    what = strand.waits_for
    if isinstance(what, Call):
        return f"{'has the answer to' if what.is_sent else 'is about to send'}: {what.text}"
    return str(what)


def _no_answer(call: Call) -> ApiUnavailableError:
    return ApiUnavailableError(call.text, None, "", "connection reset")
