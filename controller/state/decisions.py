"""Decides which devices each pod gets, keeps track of the pods that wait, and explains why they do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from dracaena.api.objects import Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit, Settled
from dracaena.controller.allocation.earmarks import Earmark
from dracaena.controller.allocation.effort import Effort, OverdueError, at_most
from dracaena.controller.allocation.explanation import Pace, Reasons, Unsatisfied
from dracaena.controller.allocation.nodes.node_resources import may_preempt, pod_name
from dracaena.controller.allocation.nodes.placement.placed_pods import Change
from dracaena.controller.allocation.nodes.placement.placement_demand import PlacementDemand
from dracaena.controller.allocation.nodes.placement.pod_terms import UnreadableSelectorError
from dracaena.controller.allocation.reach import Prospect, Reach
from dracaena.controller.allocation.remedies import MOST_STEPS
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.gangs import may_have_a_group
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder
from dracaena.controller.allocation.state.size_demand import SizeDemand
from dracaena.controller.allocation.walk.pod_demand import APART, Turn, placement_of, shape, turn
from dracaena.controller.lifecycle.claim_record import ClaimShare, means_the_same
from dracaena.controller.lifecycle.pod_record import TRIED
from dracaena.controller.lifecycle.refusals import WriteRefusal
from dracaena.controller.queue.time_budgets import Deadline, within
from dracaena.controller.queue.waiting_lines import LACKS_ROOM_TOO, NOWHERE, Scope, WaitingLines
from dracaena.controller.state.answers import Behind, Decision, Deferred, InProgress
from dracaena.controller.state.explanation_cache import ExplanationCache
from dracaena.controller.state.group_turns import GroupTurns
from dracaena.controller.state.quota_forecasts import QuotaForecasts
from dracaena.controller.state.quotas import LacksRoomToo, Quotas
from dracaena.controller.state.records import Records
from dracaena.controller.state.remedy_trials import RemedyTrials
from dracaena.controller.state.starvation import QUESTIONS, StarvationGuard

ELSEWHERE: Final = "where a pod that shares one of its claims is not"
OFFERED_FIRST: Final = "that just changed, and are offered to earlier pods first"
"""Why nodes are left out for a pod, in words that follow a count."""


class Decisions:
    """Part of its owner, and used under the owner's lock. `wake` is called with the keys of pods that need a decision,
    `ask_again` with the keys of pods that fitted nowhere and may fit now, in the order of their turns.

    Pods that fit nowhere wait in lines (queue.waiting_lines). After a device is freed, or a node or slice changes, the
    first pod of each line that this may help is tried again, and only on the nodes that changed. A pod with a later
    turn whose decision comes before theirs gets nothing there.
    """

    def __init__(
        self,
        allocator: Allocator,
        inventory: Inventory,
        records: Records,
        groups: GroupTurns,
        quotas: Quotas,
        wake: Callable[[Iterable[str]], None],
        ask_again: Callable[[Iterable[str]], None],
    ) -> None:
        self._allocator = allocator
        self._inventory = inventory
        self._records = records
        self._groups, self._quotas = groups, quotas
        self._wake = wake
        self._ask_again = ask_again
        self._lines = WaitingLines()
        self._deferred: set[str] = set()
        """Pods that wait with several claims: what other drivers' devices become free may help them."""
        self._size_demand = SizeDemand()
        self._starvation = StarvationGuard(inventory, self._node_to_keep)
        self._forecasts = QuotaForecasts(allocator, quotas, self._pods_holding)
        self._trials = RemedyTrials(allocator, inventory, quotas, self._pods_holding)
        self._explanations = ExplanationCache()

    def decide(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        *,
        decision_id: str,
        now_s: float,
        deadline: Deadline | None = None,
    ) -> Decision:
        """Decide for a pod and its claims, as claim() returned them. The devices it gets are taken from now on.

        A pod that fits nowhere is woken when something changes that may help it. `now_s` is Clock.monotonic(). A claim
        that several pods share is decided once. The caller must report how the decision ended, by its id (ended). When
        the deadline passes, the answer is the best one found so far, or a refusal of the kind TOO_LONG; after such a
        refusal, changes wake the pod as if it fitted nowhere.
        """
        with within(deadline) as is_over:
            claims = self._newest(claims)
            if pod.spec.node_name:
                self._records.prove_for_bound((claim.key for claim in claims), now_s)
            busy = [claim.key for claim in claims if not self._is_open(claim, pod)]
            if busy:
                for key in busy:
                    self._records.note_blocked_pod(key, pod.key)
                self.leave(pod.key)
                return InProgress(busy[0])
            refused = next(self._refused(claims, now_s), None)
            if refused is not None:
                self.leave(pod.key)
                return Refused(RefusalKind.REFUSED_WRITE, refused.why, concerns_us=True)
            stuck = self._groups.refusal(pod, claims) if may_have_a_group(pod) else None
            if stuck is not None:
                self.leave(pod.key)
                return stuck
            barred = self._barred(pod, claims, now_s)
            is_apart = bool(barred) or self._records.must_not_preempt(pod, now_s)
            pod_shape, pod_turn = self._shape(pod, claims, is_over, apart=is_apart), self._turn(pod)
            known = self._lines.standing.get(pod.key)
            if known is not None and known.turn != pod_turn:  # its group gave up: it must not stand behind itself
                self.leave(pod.key)
            if self.has_waiting_pods and self._lines.is_behind(pod_shape, pod_turn):
                self._ask_again(self._lines.put(pod.key, pod_shape, pod_turn, ""))
                return Behind(self._lines.refusal(pod_shape))
            not_here = {**self._kept_for_another(pod, claims), **barred}
            request = _Request(pod, claims, pod_shape, pod_turn, not_here, is_over)
            has_waited = pod.key in self._lines.standing  # until now
            changed = self._lines.changed_for(pod.key, pod_shape, pod_turn) if has_waited else None
            with self._as_free(claims):
                decision = self._answer(request, changed)
                if isinstance(decision, NoFit):
                    decision = self._preempting(request, changed, now_s) or decision
            if isinstance(decision, NoFit | LacksRoomToo):
                with suppress(OverdueError):  # the next keep_for_starving() has a deadline of its own
                    self._consider(pod, claims, pod_shape, barred, now_s)
                    if isinstance(decision, NoFit) and pod.metadata.namespace in self._quotas.by_namespace:
                        refusal = self._forecasts.refusal(
                            pod, claims, pod_shape, self._barred_alone(pod, claims, now_s), decision, now_s
                        )
                        decision = refusal or decision
            if isinstance(decision, NoFit | Refused):
                self._let_wait(request, decision, only_changed=changed is not None)
            else:
                self._end_wait(pod, decision, decision_id)
            return decision

    def explain(
        self, pod: Pod, claims: Sequence[ResourceClaim], *, now_s: float, pace: Pace
    ) -> Generator[None, None, Reasons | None]:
        """Explain why a pod fits nowhere now, and what would help; None when it seems to fit after all. Yields between
        turns, so that the caller may release the lock (Allocator.explain_in_turns).

        Cost: one step per node and some ten decisions, once for all equal pods within EXPLANATION_S. `now_s` is
        Clock.monotonic(). When it takes too long for the pace, the text says so, and what took so long.
        """
        barred = self._barred(pod, claims, now_s)
        is_apart = bool(barred) or self._records.must_not_preempt(pod, now_s)
        pod_shape = self._shape(pod, claims, pace.begin_turn(), apart=is_apart)
        barred = {**self._kept_for_another(pod, claims), **barred}
        request = pod_shape, tuple(barred)
        names = (*(claim.key for claim in claims), pod.key)  # a name that is both mostly stands for the claim
        known = self._explanations.get(request, names, now_s=now_s)
        if known is not None:
            reasons = known.reasons
        else:
            reasons = yield from self._work_out(pod, claims, barred, pace)
            self._explanations.put(request, names, reasons, now_s=now_s)
        if reasons is None:
            return None
        mark = self._starvation.earmark
        if mark is not None and mark.pod_key == pod.key:
            reasons = reasons.with_note(f"node {mark.node} is being kept free for it")
        kept = next((place for claim in claims if (place := self._records.kept_on(claim.key)) is not None), None)
        if kept is not None:
            evicts = "while kube-scheduler evicts pods of lower priority there"
            reasons = reasons.with_note(f"GPUs on node {kept} are kept for it {evicts}")
        return reasons

    def _work_out(
        self, pod: Pod, claims: Sequence[ResourceClaim], barred: Mapping[str, str], pace: Pace
    ) -> Generator[None, None, Reasons | None]:
        turns = self._allocator.explain_in_turns(self._inventory, pod, claims, barred=barred, pace=pace)
        while True:
            with self._as_free(claims):
                try:
                    next(turns)
                except StopIteration as end:
                    found: Unsatisfied | Refused | None = end.value
                    break
            yield
        if isinstance(found, Refused):
            return Reasons(found.text) if found.kind is RefusalKind.TOO_LONG else None
        if found is None:
            return None
        return Reasons(found, (yield from self._remedies(pod, claims, found, barred, pace)))

    def _remedies(
        self, pod: Pod, claims: Sequence[ResourceClaim], why: Unsatisfied, barred: Mapping[str, str], pace: Pace
    ) -> Generator[None, None, tuple[str, ...]]:
        """Work out what would help, in turns of one question or more."""
        is_over = pace.begin_turn()
        turns = self._trials.remedies(pod, claims, why, barred, lambda: at_most(MOST_STEPS, is_over))
        while True:
            with self._as_free(claims):
                try:
                    next(turns)
                except StopIteration as end:
                    named: tuple[str, ...] = end.value
                    return named
            if pace.turn_is_up():
                yield
                is_over = pace.begin_turn()

    def reprice(self, now_s: float) -> None:
        """Take the prices that suit what pods ask for now (Allocator.reprice). Call this about once a second."""
        shares = self._size_demand.shares(self._inventory.holdings.by_size, now_s)
        self._allocator.reprice(self._inventory, shares)

    def keep_for_starving(self, created_before: str, *, now_s: float, deadline: Deadline | None = None) -> None:
        """Keep a node for the first pod that was created before a time (RFC 3339, UTC; empty: no pod was) and waits
        only because devices are taken. The node is kept until the pod no longer waits. Call this about once a second,
        and before the first decision. When the deadline passes, the rest is left to the next call.
        """
        with within(deadline) as is_over:
            self._starvation.created_before = created_before
            mark = self._starvation.earmark
            if mark is not None and not (created_before and self._still_waits(mark)):
                self._starvation.served()
                self.may_help(frozenset((mark.node,)))
            self._starvation.look(now_s)
            questions = 0
            self._allocator.effort.begin(is_over)
            first = self._lines.first_before(created_before)
            for key in sorted(first, key=lambda key: self._starvation.order(self._lines.standing[key].turn)):
                found = self._reconsider(key, now_s)
                questions += found is False
                if found or questions == QUESTIONS:
                    break

    @property
    def earmark(self) -> Earmark | None:
        """The node that is kept for a pod now."""
        return self._starvation.earmark

    def leave(self, key: str) -> None:
        """Note that a pod does not wait for devices now, or has to wait for something else first: from now on no
        change of the cluster wakes it."""
        self._deferred.discard(key)
        if key in self._lines.standing:
            self._size_demand.leave(key)
            self._ask_again(self._lines.leave(key))

    def may_help_all(self) -> Sequence[str]:
        """Note a change that may help any pod. Return the keys of all pods that wait in lines, by turn."""
        self._lines.change(None, {})
        return self._lines.all()

    def is_beyond_quota(self, key: str) -> bool:
        """Whether nothing but its namespace's quota, given what that holds now, stops a pod that waits."""
        standing = self._lines.standing.get(key)
        refused = None if standing is None else self._lines.refusal(standing.shape)
        return refused is not None and not (isinstance(refused, LacksRoomToo) and refused.used_up)

    @property
    def has_waiting_pods(self) -> bool:
        """Whether some pod fits nowhere now."""
        return bool(self._lines.standing)

    def may_help(self, nodes: Scope, *, devices_differ: bool = False) -> None:
        """Try the waiting pods again that a change on these nodes may help; None: on any node. `devices_differ`: the
        published devices have changed. Call it under the lock of the change, so that no decision comes between."""
        if nodes is None or nodes:
            self._ask_again(self._lines.change(nodes, {}, devices_differ=devices_differ))

    def devices_freed(self, nodes: Scope, namespace: str) -> None:
        """Try the waiting pods again that may use the devices that a claim of a namespace released on these nodes."""
        self.may_help(nodes)
        if namespace in self._quotas.by_namespace:
            self._forecasts.forget(namespace)
            if nodes == NOWHERE:
                self.quota_changed(namespace)

    def quota_changed(self, namespace: str) -> None:
        """Try the waiting pods of a namespace again, because its quota may allow more than before."""
        self._forecasts.forget(namespace)
        self._ask_again(self._lines.change_for(key for key in self._lines.all() if key.startswith(f"{namespace}/")))

    def resources_freed(self, nodes: Iterable[str]) -> None:
        """Try the waiting pods again that lacked CPU, memory or the like, on nodes that have more of it left. Pods end
        all the time, so pods that wait only for devices are left out."""
        offering = frozenset(filter(self._inventory.offers, nodes))
        if offering:
            self._ask_again(self._lines.change(offering, {}, only_short=True))

    def placement_changed(self, changes: Collection[Change]) -> None:
        """Try the pods again, on any node, that wait for storage or for other pods to come to nodes or leave them."""
        if changes:
            self._ask_again(self._lines.changes_came(changes))

    def other_devices_changed(self) -> None:
        """Try the pods again, on any node, that devices of other drivers may help that were published or released."""
        if self._inventory.others.may_help:
            self._inventory.others.may_help = False
            self._ask_again(self._lines.other_devices_changed())

    # Inside

    def _answer(self, request: _Request, changed: Scope) -> Allocation | NoFit | Refused | Settled | Deferred:
        """Answer a request. A waiting pod is first tried only on the nodes that `changed`; mostly it goes on waiting.
        If it fits on one of them, its devices are chosen among all nodes."""
        if changed is not None:
            found = self._allocate(request, request.barred, changed) if changed else NoFit()
            return self._allocate(request, request.barred) if not isinstance(found, NoFit) else found
        offered = self._offered_first(request)
        if offered is None:
            return Deferred()
        decision = self._allocate(request, {**offered, **request.barred})
        is_served = isinstance(decision, Allocation | Settled)
        return decision if is_served or not offered else Deferred()

    def _allocate(
        self, request: _Request, barred: Mapping[str, str], within: Scope = None, *, preempting: bool = False
    ) -> Allocation | NoFit | Refused | Settled:
        allocate = partial(self._allocator.allocate, self._inventory, request.pod, request.claims)
        ask = partial(allocate, within=within, preempting=preempting, is_over=request.is_over)
        namespace = request.pod.metadata.namespace
        known = self._records.backed_off(request.pod.key)
        found: Allocation | NoFit | Refused | Settled = NoFit()
        for tried in ({},) if known is None else (*known.by_tries(), {}):
            found = self._within_quota(namespace, {**tried, **barred}, ask)
            if not isinstance(found, NoFit | LacksRoomToo):
                break
        return found

    def _within_quota(
        self, namespace: str, barred: Mapping[str, str], ask: Callable[..., Allocation | NoFit | Refused | Settled]
    ) -> Allocation | NoFit | Refused | Settled:
        if namespace not in self._quotas.by_namespace:
            return ask(barred=barred)
        return self._quotas.ask(namespace, lambda more: ask(barred={**more, **barred}))

    def _preempting(self, request: _Request, changed: Scope, now_s: float) -> Allocation | None:
        """For a pod that fits nowhere, ask for a node on which it would fit without pods of lower priority.

        kube-scheduler evicts those only where it finds the claim allocated. It may clear the claim in the same attempt,
        so a pod with several claims, or with one that others share, waits for room
        (docs/design/where-a-pod-may-run.md). A node that did not change cannot have become better: while a pod must not
        preempt it is like no other.
        """
        pod, claims = request.pod, request.claims
        if not may_preempt(pod) or self._records.must_not_preempt(pod, now_s) or len(claims) != 1:
            return None
        (claim,) = claims
        if claim.status.allocation is not None or self._records.is_kept(claim.key):
            return None
        if self._records.is_shared(claim.key, pod.key):
            return None
        if not self._inventory.resources.has_lower(pod.spec.priority):
            return None
        found = self._allocate(request, request.barred, changed, preempting=True)
        if not isinstance(found, Allocation):
            return None
        is_short = self._inventory.resource_demand(pod).shortage(found.node) is not None
        return replace(found, preempting=is_short)

    @contextmanager
    def _as_free(self, claims: Iterable[ResourceClaim]) -> Iterator[None]:
        """Treat what is kept for the pod of these claims as free for a while."""
        holders = [claim_holder(claim) for claim in claims if self._records.is_kept(claim.key)]
        before = {holder: self._inventory.holdings.held_by(holder) for holder in holders}
        for holder in holders:
            self._inventory.release(holder)
        try:
            yield
        finally:
            for holder, (devices, others) in before.items():
                self._inventory.hold(holder, devices, others)

    def _offered_first(self, request: _Request) -> Mapping[str, str] | None:
        """Return the nodes that may serve a pod but are offered to pods with earlier turns first, with the reason;
        None: any node may be one of them.

        A pod that was deferred once no longer waits for pods that were tried and failed since. A pod that has a node,
        or an allocated claim, waits for no other pod.
        """
        pod, claims = request.pod, request.claims
        was_deferred = pod.key in self._deferred
        self._deferred.discard(pod.key)
        has_place = pod.spec.node_name or any(claim.status.allocation is not None for claim in claims)
        is_next = was_deferred or has_place or not self.has_waiting_pods
        changed = NOWHERE if is_next else self._lines.changed_for_earlier(request.turn)
        if not changed:
            return None if changed is None else {}
        reach = Reach(self._inventory, pod, claims)
        known: dict[tuple[bytes, str], bool] = {}
        possible = (node for node in changed if reach.prospect(node, known) is Prospect.POSSIBLE)
        return dict.fromkeys(sorted(possible), OFFERED_FIRST)

    def _let_wait(self, request: _Request, decision: NoFit | Refused, *, only_changed: bool) -> None:
        pod, claims = request.pod, request.claims
        answer = decision.kind.value if isinstance(decision, Refused) else ""
        answer = LACKS_ROOM_TOO if isinstance(decision, LacksRoomToo) else answer
        is_like_no_other = request.shape.startswith(APART)

        def reach() -> Reach | None:
            return None if is_like_no_other else Reach(self._inventory, pod, claims)

        woken = self._lines.put(
            pod.key,
            request.shape,
            request.turn,
            answer,
            reach=None if only_changed and not answer else reach,
            is_short=isinstance(decision, Refused) or decision.short,
            refusal=decision if isinstance(decision, Refused) and decision.kind is RefusalKind.QUOTA else None,
        )
        self._ask_again(woken)
        if isinstance(decision, NoFit) and decision.gpus:
            self._size_demand.wait(pod.key, decision.gpus)
        rules = self._rules(pod, Effort())  # what it counts is known by now
        changes = {} if rules is None else rules.waits_for
        self._lines.wait_for(pod.key, changes, other_devices=len(claims) > 1)

    def _end_wait(self, pod: Pod, decision: Allocation | Settled | Deferred, decision_id: str) -> None:
        self.leave(pod.key)
        if isinstance(decision, Deferred):
            self._deferred.add(pod.key)
            self._ask_again((pod.key,))
        if isinstance(decision, Allocation):
            if pod.metadata.namespace in self._quotas.by_namespace:
                self._forecasts.forget(pod.metadata.namespace)
            for entry in decision.claims:
                self._records.decide(entry.claim.key, ClaimShare.of(decision_id, pod, decision, entry))

    def _turn(self, pod: Pod) -> Turn:
        return self._groups.turn_of(pod) if may_have_a_group(pod) else turn(pod)

    def _rules(self, pod: Pod, effort: Effort) -> PlacementDemand | None:
        with suppress(UnreadableSelectorError):
            return placement_of(self._inventory, pod, effort)
        return None

    def _refused(self, claims: Iterable[ResourceClaim], now_s: float) -> Iterator[WriteRefusal]:
        waiting = (claim.key for claim in claims if claim.status.allocation is None)
        return (known for key in waiting if (known := self._records.refusal(key, now_s)) is not None)

    def _newest(self, claims: Iterable[ResourceClaim]) -> tuple[ResourceClaim, ...]:
        """Return claims in their newest versions, where these mean the same: such a change wakes no pod."""
        records = ((claim, self._records.claim(claim.key)) for claim in claims)
        return tuple(
            record.shown if record is not None and means_the_same(claim, record.shown) else claim
            for claim, record in records
        )

    def _is_open(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Whether a decision for a pod may use this state of a claim."""
        record = self._records.claim(claim.key)
        if record is None or record.shown is not claim:
            return False
        node = pod.spec.node_name
        return record.is_open_on(node) if node else record.is_open_to(pod.metadata.uid)

    def _shape(
        self, pod: Pod, claims: Sequence[ResourceClaim], is_over: Callable[[int], bool], *, apart: bool
    ) -> bytes:
        self._allocator.effort.begin(is_over)
        try:
            rules = self._rules(pod, self._allocator.effort)
            labels = {} if rules is None else rules.labels
            shared = any(self._records.naming_count(claim.key) > 1 for claim in claims)
            return shape(pod, claims, labels=labels, apart=apart, shared=shared, effort=self._allocator.effort)
        except OverdueError:
            return shape(pod, (), apart=True)  # then allocate() is overdue too, and says why

    def _barred(self, pod: Pod, claims: Sequence[ResourceClaim], now_s: float) -> Mapping[str, str]:
        """Return the nodes that this pod, unlike its equals, must not use whatever is free there, with the reason."""
        kept = self._groups.kept_from(pod, claims) if may_have_a_group(pod) else {}
        return {**kept, **self._barred_alone(pod, claims, now_s)}

    def _barred_alone(self, pod: Pod, claims: Sequence[ResourceClaim], now_s: float) -> Mapping[str, str]:
        """Return the same but for those that other groups keep. Whether a group is beyond its quota does not depend on
        them."""
        known = self._records.backed_off(pod.key)
        tried = () if known is None else known.nodes_left_out(now_s)
        return {**dict.fromkeys(tried, TRIED), **self._where_others_are_not(pod, claims)}

    def _kept_for_another(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Mapping[str, str]:
        """Return the node that is kept for a pod with an earlier turn, with the reason.

        A pod with an allocated claim may use the node: the claim decides where the pod goes.
        """
        if any(claim.status.allocation is not None for claim in claims):
            return {}
        mark = self._starvation.earmark
        return {mark.node: mark.reason} if mark is not None and mark.bars(self._turn(pod)) else {}

    def _where_others_are_not(self, pod: Pod, claims: Iterable[ResourceClaim]) -> Mapping[str, str]:
        """Return the nodes that a pod must not use because another pod with the same unallocated claim is on a
        different node: it was bound there with the claim's earlier allocation, or names its node. Cost: nothing, or
        one step per node."""
        if pod.spec.node_name:
            return {}
        free = (claim.key for claim in claims if claim.status.allocation is None)
        there = {node for key in free for node in self._records.nodes_of(key)}
        names = self._inventory.nodes.names if there else ()
        return dict.fromkeys((name for name in names if name not in there), ELSEWHERE)

    def _pods_holding(self, holder: str) -> Iterable[str]:
        """Return the pods that leave their node when a holder releases its devices, named as in the inventory."""
        pods = (self._records.pod(key) for key in self._records.naming(holder))
        return [pod_name(pod) for pod in pods if pod is not None]

    def _still_waits(self, mark: Earmark) -> bool:
        """Whether an earmark's pod, and not a later pod of its name, still fits nowhere, or has a decision that the
        server does not show yet and that may still be lost."""
        pod = self._records.pod(mark.pod_key)
        if pod is None or self._turn(pod) != mark.turn:
            return False
        if not self._lines.fits_nowhere(pod.key):
            return bool(self._records.deciding_for(pod.key))
        claims = self._shown_claims(pod)
        return claims is not None and self._beyond_quota(pod, claims, mark.node) is None

    def _shown_claims(self, pod: Pod) -> list[ResourceClaim] | None:
        """Return the claims that a pod names; None when one is missing."""
        records = [self._records.claim(key) for key in dict.fromkeys(claim.key or "" for claim in pod_claims(pod))]
        there = [record.shown for record in records if record is not None]
        return there if len(there) == len(records) else None

    def _node_to_keep(
        self, pod: Pod, claims: Sequence[ResourceClaim], barred: Mapping[str, str], only: str | None
    ) -> str | None:
        node = self._quotas.node_to_keep(self._allocator, pod, claims, barred, self._pods_holding, only=only)
        return node if isinstance(node, str) else None

    def _beyond_quota(self, pod: Pod, claims: Sequence[ResourceClaim], node: str) -> Refused | None:
        return self._quotas.refusal(self._allocator, pod, claims, node, self._pods_holding)

    def _reconsider(self, key: str, now_s: float) -> bool | None:
        """Check whether a node has to be kept for a waiting pod, and wake the pod if so. See
        StarvationGuard.consider()."""
        pod, standing = self._records.pod(key), self._lines.standing.get(key)
        if pod is None or standing is None:
            return None
        there = self._shown_claims(pod)
        if there is None:
            return None
        before = self._starvation.earmark
        try:
            found = self._consider(pod, there, standing.shape, self._barred(pod, there, now_s), now_s)
        except OverdueError:
            # It used up the whole deadline, and would do so again each second.
            self._starvation.give_up(standing.shape, now_s)
            return False
        if found and self._starvation.earmark != before:
            self._wake((key,))
        return found

    def _consider(
        self, pod: Pod, claims: Sequence[ResourceClaim], pod_shape: bytes, barred: Mapping[str, str], now_s: float
    ) -> bool | None:
        before = self._starvation.earmark
        found = self._starvation.consider(pod, claims, self._turn(pod), pod_shape, barred, now_s)
        if before is not None and self._starvation.earmark != before:
            self.may_help(frozenset((before.node,)))
        return found


@dataclass(frozen=True, slots=True)
class _Request:
    """One pod's request for devices."""

    pod: Pod
    claims: Sequence[ResourceClaim]
    shape: bytes
    turn: Turn
    barred: Mapping[str, str]
    is_over: Callable[[int], bool]
