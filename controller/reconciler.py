"""Turns one pod key into a written decision, a reason why the pod waits, or a later retry."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

import structlog

from dracaena.api.decision import describe
from dracaena.api.gates import gates_of_others
from dracaena.api.names import EXTENDED_RESOURCE_ANNOTATION
from dracaena.api.objects import Pod
from dracaena.api.podclaims import is_made_for, made_for_another
from dracaena.api.reasons import no_claim, no_template
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import NoFit, Settled
from dracaena.controller.allocation.explanation import Reasons
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation, decision_of
from dracaena.controller.context import ControllerContext
from dracaena.controller.events.ignored_parts import IgnoredParts
from dracaena.controller.events.take_backs import when_again, why_held, why_taken_back
from dracaena.controller.events.waiting_pods import WaitingPods
from dracaena.controller.lifecycle.own_allocation import our_node
from dracaena.controller.lifecycle.phases import RecordEvent
from dracaena.controller.lifecycle.pod_record import Wait
from dracaena.controller.lifecycle.prospects import LOOK_S, PREEMPTED, Nudge
from dracaena.controller.lifecycle.refusals import FORBIDDEN, INVALID
from dracaena.controller.queue.charging import Charging
from dracaena.controller.state.answers import Behind, Decision, Deferred, InProgress
from dracaena.controller.state.cluster import Cluster
from dracaena.controller.state.quotas import LacksRoomToo
from dracaena.controller.state.upkeep import TakenBack
from dracaena.controller.write.claim_templates import ClaimTemplates
from dracaena.controller.write.claim_writer import ClaimWriter, Lost, Written
from dracaena.controller.write.gatekeeper import Gatekeeper, Ungated
from dracaena.controller.write.nomination import Nomination
from dracaena.kube.errors import ForbiddenError, KubeError

MISSING_CLAIM_S: Final = 0.5
"""Pods and claims come from one manifest, and the watch of claims may lag behind that of pods: a claim that is missing
for less is not reported. People who misspelt a name look at the pod's Events within a second or two."""

GENERATED_S: Final = 5.0
"""kube-controller-manager makes claims from templates within moments, but for a hundred pods it takes seconds: a pod
that waits for that is not reported before."""

EVENT_REASON: Final = "GPUsAllocated"
TAKEN_BACK: Final = "GPUsTakenBack"

LINE_AGAIN_S: Final = 60.0
"""How often a pod at the gate asks again why the equal pod before it waits. While the reason is the quota both stay
there; when no node has room, both may pass. Asking costs some 0.1 ms, so 10,000 such pods take 2 % of a core."""

DECISION_ID_LENGTH: Final = 12
"""Hexadecimal digits: among a million decisions, two share an ID with a probability of 1 in 500."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Missing:
    """A claim that the pod names does not exist: it will exist soon, or a person has to create it."""

    why: str
    pod: Pod | None = None
    template: str | None = None
    """`namespace/name` of the template that the claim is not made from yet."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The pod was not bound with any allocation so far: it gets none for a while."""

    pod: Pod
    wait: Wait


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to decide; a change of the pod or of a claim will wake the pod."""

    why: str
    not_ours: Pod | None = None
    """The pod, if kube-scheduler alone allocates for it."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided for a pod and its claims."""

    decision_id: str
    """Stands in every log line of this decision, from here to the last write."""
    pod: Pod
    claims: tuple[ResourceClaim, ...]
    decision: Decision
    at_s: float
    """When the decision was made. What was barred then may be open by the time the decision is carried out."""


Step = Missing | HeldBack | Nothing | Decided


class Reconciler:
    """Gets pods their devices. Safe to use from many workers as long as no two work on the same pod.

    Decisions are made one at a time, each with the results of all decisions before it (plan); writes run in parallel
    (carry_out). It does not matter which scheduler a pod names: the one that binds it has to use the claims' node.
    """

    def __init__(
        self,
        context: ControllerContext,
        *,
        cluster: Cluster,
        writer: ClaimWriter,
        nomination: Nomination,
        gatekeeper: Gatekeeper,
        templates: ClaimTemplates,
        waiting: WaitingPods,
    ) -> None:
        self._driver, self._clock, self._metrics = context.driver, context.clock, context.metrics
        self._queue, self._budgets, self._events = context.queue, context.budgets, context.events
        self._cluster = cluster
        self._writer = writer
        self._nomination = nomination
        self._gatekeeper = gatekeeper
        self._templates = templates
        self._waiting = waiting
        self._charging = Charging(context.queue, context.budgets, context.clock)
        self._ignored = IgnoredParts(context.events)

    def plan(self, key: str) -> Step:
        """Find out what is next for a pod, and make the decision if one is due. Neither reads nor writes the API.

        Call it for one pod at a time, in the order of their turns, and then carry_out(): a device goes to the pod whose
        decision is made first.
        """
        with self._charging.of(key) as charge:
            step = self._plan(key)
            charge.gave_devices = isinstance(step, Decided) and isinstance(step.decision, Allocation)
            return step

    def _plan(self, key: str) -> Step:
        pod = self._cluster.pod(key)
        if pod is None or not _wants_devices(pod, self._driver):
            self._budgets.forget(key)
            self._ignored.forget(key)
            self._nomination.forget(key)
            self._cluster.leave(key)
            return Nothing("wants no devices")
        claims = self._ready_claims(pod)
        if isinstance(claims, Missing | Nothing):
            self._cluster.leave(key)
            return replace(claims, pod=pod) if isinstance(claims, Missing) else claims
        wait = self._cluster.held(pod) if any(claim.status.allocation is None for claim in claims) else None
        if wait is not None:
            self._cluster.leave(key)
            return HeldBack(pod, wait)
        decision_id = uuid4().hex[:DECISION_ID_LENGTH]
        with structlog.contextvars.bound_contextvars(decision=decision_id):
            at_s = self._clock.monotonic()
            return Decided(decision_id, pod, claims, self._decide(decision_id, pod, claims, at_s), at_s)

    def carry_out(self, key: str, step: Step) -> bool:
        """Do what was planned for a pod. Return whether it succeeded; if not, the caller retries with back-off.

        Raises KubeError when the server does not answer; the caller retries then, too.
        """
        with self._charging.of(key) as charge:
            charge.gave_devices = isinstance(step, Decided) and isinstance(step.decision, Allocation)
            return self._carry_out_step(key, step)

    def _carry_out_step(self, key: str, step: Step) -> bool:
        if isinstance(step, Missing):
            self._wait_for_claim(step)
            return True
        if isinstance(step, HeldBack):
            self._waiting.report(step.pod, "held", why_held(self._cluster.said(step.pod), step.wait), send=True)
            self._queue.add_after(key, step.wait.again_s - self._clock.monotonic())
            return True
        if isinstance(step, Nothing):
            self._waiting.forget(key)
            if step.not_ours is not None:
                self._gatekeeper.ungate(step.not_ours, Ungated.NOT_OURS)
            log.debug("nothing to decide", why=step.why)
            return True
        with structlog.contextvars.bound_contextvars(decision=step.decision_id):
            return self._carry_out(step)

    def _wait_for_claim(self, step: Missing) -> None:
        pod = step.pod
        assert pod is not None
        waited_s = self._waiting.waited_s(pod)
        why, patience_s = step.why, MISSING_CLAIM_S
        if step.template is not None and waited_s >= MISSING_CLAIM_S and not self._may_exist(step.template):
            why = no_template(step.template, self._templates_in_namespace_of(step.template))
        elif step.template is not None:
            patience_s = GENERATED_S
        self._waiting.report(pod, "claim-missing", why, send=True, patience_s=max(patience_s - waited_s, 0.0))
        for again_s in (MISSING_CLAIM_S - waited_s, self._templates.make_for(pod)):
            if again_s is not None and again_s > 0:
                self._queue.add_after(pod.key, again_s)

    def _may_exist(self, template: str) -> bool:
        try:
            return self._templates.exists(template)
        except KubeError as error:
            log.warning("a template cannot be looked up", template=template, error=str(error))
            return True

    def _templates_in_namespace_of(self, template: str) -> Collection[str]:
        try:
            return self._templates.names(template.partition("/")[0])
        except KubeError as error:
            log.warning("templates cannot be listed", template=template, error=str(error))
            return ()

    def _carry_out(self, step: Decided) -> bool:
        decision = step.decision
        if isinstance(decision, NoFit | Behind | Refused):
            self._wait(step, decision)
            self._look_for_ignored(step)
            return True
        if isinstance(decision, Deferred):
            log.debug("decided for after pods before it")
            return True
        if isinstance(decision, Allocation):
            return self._write(step, decision)
        self._waiting.forget(step.pod.key)
        if isinstance(decision, InProgress):
            log.debug("nothing to decide yet", why=f"claim {decision.claim_key} is being allocated or taken back")
        if isinstance(decision, Settled):
            self._attend(step.pod)
        return True

    def _attend(self, pod: Pod) -> None:
        """Check whether a pod whose claims are all allocated gets bound."""
        found = self._cluster.attend(pod)
        if isinstance(found, TakenBack):
            log.warning(
                "allocation is to be taken back",
                reason=found.reason,
                node=found.node,
                claims=list(found.claims),
                left_out=_left_out(found),
                for_s=round(found.for_s, 1),
                said=found.said.message if found.said is not None else "",
            )
            if found.reason != "collision":  # a collision has Events of its own
                self._events.record(pod, "Warning", TAKEN_BACK, why_taken_back(found))
        elif isinstance(found, Nudge):
            self._nomination.nudge(pod, found.node)
            self._queue.add_after(pod.key, LOOK_S)
        elif found is not None:
            self._queue.add_after(pod.key, found)
        if pod.spec.scheduling_gates and not isinstance(found, TakenBack):
            self._gatekeeper.ungate(pod, Ungated.ALLOCATED)

    def _ready_claims(self, pod: Pod) -> tuple[ResourceClaim, ...] | Missing | Nothing:
        """Return all claims of a pod, in the order of its spec, if all exist and none is being deleted.

        A claim that two entries name is returned once.
        """
        claims: dict[str, ResourceClaim] = {}
        templates = {entry.name: entry.resource_claim_template_name for entry in pod.spec.resource_claims}
        for reference in self._cluster.named_by(pod):
            if reference.key is None:
                template = templates.get(reference.alias)
                why = f"the claim for {reference.alias} is not generated from its template yet"
                return Missing(why, template=template and f"{reference.namespace}/{template}")
            claim = self._cluster.claim(reference.key)
            if claim is None:
                return Missing(no_claim(reference.key))
            if claim.problem:
                return Missing(f"claim {reference.key} cannot be read: {claim.problem}")
            if reference.generated and not is_made_for(claim, pod):
                return Missing(made_for_another(claim))
            if EXTENDED_RESOURCE_ANNOTATION in claim.metadata.annotations:
                return Nothing(f"claim {reference.key} is kube-scheduler's own, for an extended resource", pod)
            if claim.metadata.deletion_timestamp is not None:
                return Nothing(f"claim {reference.key} is being deleted")
            claims[reference.key] = claim
        return tuple(claims.values())

    def _decide(self, decision_id: str, pod: Pod, claims: Sequence[ResourceClaim], began_s: float) -> Decision:
        deadline = self._budgets.deadline(pod.key)
        decision = self._cluster.decide(pod, claims, decision_id=decision_id, now_s=began_s, deadline=deadline)
        took_s = self._clock.monotonic() - began_s
        overdue = isinstance(decision, Refused) and decision.kind is RefusalKind.TOO_LONG
        goes_on = isinstance(decision, Refused) and decision.goes_on
        result = "too-long" if overdue else _RESULTS[type(decision)]
        rest_s = self._budgets.decided(pod.key, deadline.used_s, overdue=overdue, goes_on=goes_on)
        if rest_s:
            self._queue.rest(pod.key, rest_s)
        if not isinstance(decision, Behind | InProgress | Deferred):
            self._metrics.decisions.seconds.observe(took_s)
        self._metrics.decisions.results.labels(result).inc()
        log.debug("decided", result=result, took_ms=round(took_s * 1e3, 3))
        return decision

    def _write(self, step: Decided, allocation: Allocation) -> bool:
        """Write a decision. Whatever happens, the cluster learns how its last write ended."""
        end = RecordEvent.NO_ANSWER
        try:
            outcome = self._send(step, allocation)
            end = RecordEvent.ANSWERED if isinstance(outcome, Written) else RecordEvent.REFUSED
        except ForbiddenError as error:
            end = RecordEvent.REFUSED
            why = f"the controller may not write the pod's claims. The API server says: {error}"
            unwritten = [claim for claim in step.claims if claim.status.allocation is None]
            self._cluster.refused(unwritten, why, FORBIDDEN)
            log.warning("decision may not be written", error=str(error))
            return self._wait_for_change(step)
        except KubeError as error:
            end = RecordEvent.REFUSED if error.is_refusal else RecordEvent.NO_ANSWER
            raise
        finally:
            self._cluster.ended(step.claims, step.decision_id, end)
        if isinstance(outcome, Lost):
            log.warning("decision could not be written in full", claim=outcome.claim_key, why=outcome.why)
            if outcome.refused:
                refused = [claim for claim in step.claims if claim.key == outcome.claim_key]
                self._cluster.refused(refused, f"claim {outcome.claim_key} {outcome.why}", INVALID)
                return self._wait_for_change(step)
            # The next decision completes what was written on that node, or takes it back. It can do better only once
            # the watch shows what changed.
            return False
        self._report(step.pod, allocation)
        self._look_for_ignored(step)
        return True

    def _wait_for_change(self, step: Decided) -> bool:
        """Let the next decision say why a claim cannot be written; it is not tried again until a person changes it."""
        self._queue.add(step.pod.key)
        return True

    def _send(self, step: Decided, allocation: Allocation) -> Written | Lost:
        try:
            marked = self._writer.mark(allocation)
        finally:
            # The pod no longer waits, whatever became of the write; but its write does not wait for that.
            self._waiting.forget(step.pod.key)
        if isinstance(marked, Lost):
            return marked
        nominated = step.pod
        if not allocation.preempting:
            nominated = self._nomination.set(step.pod, allocation.node)
        else:
            # Only kube-scheduler's own nomination shows whether it evicts pods there.
            self._nomination.withdraw(step.pod)
        outcome = self._writer.allocate(allocation, marked, step.pod, step.decision_id)
        if isinstance(outcome, Lost):
            self._nomination.clear(nominated, allocation.node)
        return outcome

    def _report(self, pod: Pod, allocation: Allocation) -> None:
        self._metrics.decisions.allocated_pods.inc()
        if allocation.is_scored:
            gpus = allocation.choice.together.bit_count()
            self._metrics.sets.count(gpus, allocation.requirement, allocation.worst_link)
        text = describe(decision_of(allocation, allocation.claims[0]))
        if allocation.preempting:
            text = f"{text}. kube-scheduler has to evict pods of lower priority there first"
        log.info(
            "allocated",
            pod_uid=pod.metadata.uid,
            node=allocation.node,
            links=allocation.links,
            preempting=allocation.preempting,
            claims=[entry.claim.key for entry in allocation.claims],
            devices=[result.device for entry in allocation.claims for result in entry.results],
            **dict(allocation.choice.score.parts()),
        )
        for subject in (pod, *(entry.claim for entry in allocation.claims)):
            self._events.record(subject, "Normal", EVENT_REASON, text)

    def _look_for_ignored(self, step: Decided) -> None:
        self._ignored.look(step.pod, lambda: self._cluster.ignored(step.pod, step.claims))

    def _wait(self, step: Decided, decision: NoFit | Behind | Refused) -> None:
        pod, claims = step.pod, step.claims
        half_written = [claim for claim in claims if self._is_half_written(pod, claim)]
        missing = [claim for claim in claims if claim.status.allocation is None]
        at_once = self._cluster.only_we_can_serve(missing)
        if half_written and (begun := self._cluster.start_over(half_written, at_once=at_once)):
            # A write was cut off, and the remaining claims no longer fit next to what it wrote: start over.
            log.warning("half-written decision is taken back", claims=list(begun))
        refused = decision.refusal if isinstance(decision, Behind) else decision
        if isinstance(refused, Refused):
            # A class that does not exist belongs to no other driver either: most likely its name is misspelt.
            send = refused.concerns_us or refused.kind is RefusalKind.CLASS_MISSING
            self._waiting.report(pod, refused.kind.value, refused.text, send=send)
        else:
            self._waiting.report(pod, "no-node", lambda: self._explain(step), send=True)
        self._wait_at_gate(pod, refused or decision)
        again_s = self._cluster.refused_until_s(claims)
        if again_s is not None:
            self._queue.add_after(pod.key, again_s - self._clock.monotonic())
        if isinstance(decision, Behind) and refused is not None and pod.spec.scheduling_gates:
            self._queue.add_after(pod.key, LINE_AGAIN_S)
        if pod.status.nominated_node_name and not self._cluster.keeps_devices(claims):
            self._nomination.withdraw(pod)
        left_out = self._cluster.first_left_out(pod, step.at_s)
        if left_out is not None:
            self._queue.add_after(pod.key, left_out.again_s - self._clock.monotonic())

    def _wait_at_gate(self, pod: Pod, decision: NoFit | Behind | Refused) -> None:
        """Let a pod pass the gate if it asks for nothing of ours, or if a larger cluster may help and it has waited for
        long enough. A pod that a person has to fix stays, and its Events say what to do."""
        if isinstance(decision, Refused) and not decision.concerns_us:
            self._gatekeeper.ungate(pod, Ungated.NOT_OURS)
        elif not isinstance(decision, Refused) or decision.kind in _MORE_NODES_MAY_HELP:
            left_s = self._gatekeeper.wait(pod)
            if left_s is not None:
                self._queue.add_after(pod.key, left_s)

    def _explain(self, step: Decided) -> Reasons | None:
        found = self._cluster.explain(step.pod, step.claims, now_s=self._clock.monotonic())
        return found and found.with_note(when_again(self._cluster.first_left_out(step.pod, step.at_s)))

    def _is_half_written(self, pod: Pod, claim: ResourceClaim) -> bool:
        users = {consumer.uid for consumer in claim.status.reserved_for}
        return not pod.spec.node_name and users <= {pod.metadata.uid} and our_node(claim, self._driver) is not None


_MORE_NODES_MAY_HELP: Final = frozenset({RefusalKind.OTHER_DRIVER, RefusalKind.GANG_TOO_LARGE})

_RESULTS: Final = {
    Allocation: "allocated",
    NoFit: "unsatisfied",
    Refused: "refused",
    LacksRoomToo: "refused",
    Settled: "settled",
    Behind: "behind",
    InProgress: "in-progress",
    Deferred: "behind",
}


def _left_out(found: TakenBack) -> str:
    if found.reason == PREEMPTED:
        return "nodes on which others would be evicted"
    return "the node" if found.node_matters else "all nodes"


def _wants_devices(pod: Pod, driver: str) -> bool:
    """Whether a pod may wait for its claims. A pod created with a node name (no scheduler) waits for them there; one
    behind a scheduling gate of others waits for these first."""
    if pod.metadata.deletion_timestamp is not None or pod.status.phase not in ("", "Pending"):
        return False
    return not (pod.spec.scheduling_gates and gates_of_others(pod, driver))
