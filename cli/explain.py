"""`dracaena explain`: what a pod, a workload's pods or a claim got and why, or why they wait. Reads only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dracaena.api.errors import BadInputError
from dracaena.cli.columns import print_lines
from dracaena.cli.commands import Commands
from dracaena.cli.connection import add_connection_options, connect, namespace_of
from dracaena.cli.explain_target import CLAIM, POD, Target, read_target
from dracaena.cli.explained import (
    ClaimAnswer,
    LastEvent,
    PodAnswer,
    WorkloadAnswer,
    claim_document,
    claim_lines,
    pod_document,
    pod_lines,
    workload_document,
    workload_lines,
)
from dracaena.cli.leader import why_no_leader

if TYPE_CHECKING:
    from dracaena.api.decision import Decision
    from dracaena.api.objects import Pod
    from dracaena.api.podclaims import PodClaim
    from dracaena.api.resource_objects import ResourceClaim
    from dracaena.kube.client import KubeClient
    from dracaena.kube.events import Event

CONTROLLER: Final = "dracaena-controller"
"""Component in the controller's Events."""

CLAIM_NOT_MADE: Final = "FailedResourceClaimCreation"
"""Reason of kube-controller-manager's Event about a claim that it could not make from its template."""

MIG_DEVICE: Final = "mig-"
"""How names of MIG devices begin (api.mig)."""

MOST_PODS: Final = 20
"""Of a workload so many pods are explained: what keeps one of a thousand waiting mostly keeps the others too, and each
costs some requests. Those without a node come first."""

_DESCRIPTION: Final = """\
Say which GPUs a pod or a claim got and why these, or why it waits. Of a workload, each of its pods is explained, those
that wait first. Nothing is written.

The choice is explained from the claim's allocation: the links of the set, the second-best choice, and the part of the
score that decided between them (-o wide: all parts). Why a pod waits is read from its claims, its scheduling gates
and the controller's Events; a missing claim, template or class is named. A GPU that is divided on demand is drawn with
its memory slices.
"""
_EXAMPLES: Final = """\
examples:
  Why does my pod not start? Why did it get these GPUs?
      dracaena explain pod train -n research

  The pods of a Deployment, Job, StatefulSet or any other kind that makes pods itself
      dracaena explain deployment/serve

  The same for a claim, which several pods may share
      dracaena explain claim shared-gpus

  With all parts of the score
      dracaena explain pod train -o wide

  For a script: the bandwidth of what was chosen
      dracaena explain claim shared-gpus -o json | jq .decision.score.bandwidth_gb_s
"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "explain",
        help="say what a pod, a workload or a claim got and why, or why it waits",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "target", metavar="KIND/NAME", nargs="+", help="pod, claim or workload, as pod/train or pod train"
    )
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help="its namespace (default: the context's)")
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "wide", "json"),
        default="text",
        help="output format; wide: text with all parts of the score (default: %(default)s)",
    )
    add_connection_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    target = read_target(arguments.target)
    reader = _ClusterReader(connect(arguments), arguments.driver_name, namespace_of(arguments))
    wide = arguments.output == "wide"
    if target.kind == POD:
        pod = reader.pod_answer(target.name)
        if arguments.output == "json":
            print(json.dumps(pod_document(pod), indent=2))
        else:
            print_lines(pod_lines(pod, wide=wide))
        return 0
    if target.kind != CLAIM:
        workload = reader.workload_answer(target)
        if arguments.output == "json":
            print(json.dumps(workload_document(workload), indent=2))
        else:
            print_lines(workload_lines(workload, wide=wide))
        return 0
    claim, pods = reader.claim_answer(target.name)
    if arguments.output == "json":
        print(json.dumps(claim_document(claim) | {"pods": [pod_document(pod) for pod in pods]}, indent=2))
    else:
        print_lines(claim_lines(claim, {}, wide=wide))
        for pod in pods:
            if pod.state == "waiting":
                print_lines(("", *pod_lines(pod, claims=False)))
    return 0


class _ClusterReader:
    """Asks the cluster object by object, so that a user who may read only one namespace also gets an answer."""

    def __init__(self, client: KubeClient, driver: str, namespace: str) -> None:
        self._client = client
        self._driver = driver
        self._namespace = namespace

    def pod_answer(self, name: str) -> PodAnswer:
        """Raises BadInputError if there is no such pod, KubeError if the cluster does not answer."""
        from dracaena.api.objects import Pod
        from dracaena.kube.errors import NotFoundError

        try:
            pod = self._client.get(Pod, name, namespace=self._namespace)
        except NotFoundError:
            raise BadInputError(f"pod {self._namespace}/{name} does not exist") from None
        return self._explain_pod(pod)

    def workload_answer(self, target: Target) -> WorkloadAnswer:
        """Return what the pods of a workload got. Raises BadInputError if there are none, KubeError as pod_answer."""
        from dracaena.api.objects import Pod

        pods = self._client.list(Pod, namespace=self._namespace).items
        owned = target.owned(pods)
        if not owned:
            raise BadInputError(target.why_none(self._namespace, pods))
        answers = [self._explain_pod(pod) for pod in owned[:MOST_PODS]]
        name = f"{self._namespace}/{target.name}"
        return WorkloadAnswer(
            target.kind, name, len(owned), tuple(sorted(answers, key=lambda one: one.state != "waiting"))
        )

    def claim_answer(self, name: str) -> tuple[ClaimAnswer, tuple[PodAnswer, ...]]:
        """Return the claim, and the pods that name it. Raises as pod_answer does."""
        from dracaena.api.objects import Pod
        from dracaena.api.podclaims import pod_claims
        from dracaena.api.resource_objects import ResourceClaim
        from dracaena.kube.errors import NotFoundError

        try:
            claim = self._client.get(ResourceClaim, name, namespace=self._namespace)
        except NotFoundError:
            raise BadInputError(f"claim {self._namespace}/{name} does not exist") from None
        pods = [
            pod
            for pod in self._client.list(Pod, namespace=self._namespace).items
            if any(entry.name == name for entry in pod_claims(pod))
        ]
        answer = self._explain_claim(claim)
        if answer.state == "waiting" and not pods:
            why = "no pod uses it: claims get devices when a pod needs them"
            answer = ClaimAnswer(answer.name, answer.state, reasons=(*answer.reasons, why))
        return answer, tuple(self._explain_pod(pod) for pod in sorted(pods, key=lambda pod: pod.key))

    def _explain_pod(self, pod: Pod) -> PodAnswer:
        from dracaena.api.gates import is_at_our_gate
        from dracaena.api.pod_states import pod_state
        from dracaena.api.podclaims import pod_claims

        events = self._events(pod.metadata.uid)
        claims = tuple(self._named_claim(pod, entry, events or ()) for entry in pod_claims(pod))
        state = pod_state(pod, allocated=all(claim.state == "allocated" for claim in claims))
        is_gated = is_at_our_gate(pod, self._driver)
        event = newest(events or ()) if state == "waiting" or is_gated else None
        no_leader = why_no_leader(self._client, self._driver, datetime.now(UTC)) if is_gated else None
        reasons = (
            *_gate_reasons(pod, state, self._driver, no_leader),
            *_pod_reasons(pod, state, claims, event, self._driver, may_read_events=events is not None),
            *_ignored(events or ()),
        )
        return PodAnswer(pod.key, state, pod.spec.node_name, claims, reasons)

    def _named_claim(self, pod: Pod, entry: PodClaim, events: Iterable[Event]) -> ClaimAnswer:
        from dracaena.api.reasons import CREATE_IT
        from dracaena.api.resource_objects import ResourceClaim
        from dracaena.kube.errors import NotFoundError

        if entry.name is None:
            templates = {one.name: one.resource_claim_template_name or "" for one in pod.spec.resource_claims}
            why = self._not_generated(templates[entry.alias], _refusal(events, entry.alias))
            return ClaimAnswer(entry.alias, "missing", reasons=(why,))
        try:
            claim = self._client.get(ResourceClaim, entry.name, namespace=self._namespace)
        except NotFoundError:
            who = "kube-controller-manager makes it again" if entry.generated else CREATE_IT
            return ClaimAnswer(entry.key or "", "missing", reasons=(f"it does not exist: {who}",))
        owners = {owner.uid for owner in claim.metadata.owner_references if owner.controller}
        if entry.generated and pod.metadata.uid not in owners:
            return ClaimAnswer(claim.key, "missing", reasons=("a claim of this name belongs to something else",))
        return self._explain_claim(claim)

    def _not_generated(self, template: str, refusal: str) -> str:
        from dracaena.api.gpu_templates import read_gpu_template
        from dracaena.api.names import rewrite_label
        from dracaena.api.reasons import no_template
        from dracaena.api.resource_objects import ResourceClaimTemplate

        if not self._exists(ResourceClaimTemplate, template, self._namespace):
            if read_gpu_template(template) is not None:
                return (
                    f"ResourceClaimTemplate {self._namespace}/{template} does not exist yet: the controller makes it if"
                    f" the namespace has the label {rewrite_label(self._driver)}=true"
                )
            known = self._names(ResourceClaimTemplate, self._namespace)
            return no_template(f"{self._namespace}/{template}", known)
        yet = f"kube-controller-manager has not generated it from ResourceClaimTemplate {template} yet"
        return f"{yet}: {refusal}" if refusal else yet

    def _explain_claim(self, claim: ResourceClaim) -> ClaimAnswer:
        from dracaena.api.reasons import no_class
        from dracaena.api.resource_objects import DeviceClass

        allocation = claim.status.allocation
        if allocation is None:
            missing = [name for name in _class_names(claim.spec) if not self._exists(DeviceClass, name, "")]
            reasons = [no_class(name, self._names(DeviceClass), self._driver) for name in missing]
            state = "waiting" if claim.metadata.deletion_timestamp is None else "deleting"
            return ClaimAnswer(claim.key, state, reasons=tuple(reasons))
        results = allocation.devices.results
        decision, remarks = _decision(claim, self._driver)
        return ClaimAnswer(
            claim.key,
            "allocated" if claim.metadata.deletion_timestamp is None else "deleting",
            tuple(f"{result.pool}/{result.device}" for result in results if result.driver == self._driver),
            tuple(
                f"{result.driver}/{result.pool}/{result.device}" for result in results if result.driver != self._driver
            ),
            tuple(sorted(user.name for user in claim.status.reserved_for)),
            decision,
            remarks,
            self._drawn(claim),
        )

    def _drawn(self, claim: ResourceClaim) -> tuple[str, ...]:
        """Return the GPUs that are cut on demand and that a claim has parts of, as lines; none if the user may not read
        what others have of them."""
        from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
        from dracaena.cli.cut_parts import CutParts, devices_of
        from dracaena.kube.errors import ForbiddenError

        devices = list(devices_of(self._driver, claim))
        nodes = {pool for pool, device in devices if device.startswith(MIG_DEVICE)}  # a pool is called like its node
        try:
            slices = [
                item
                for node in sorted(nodes)
                for item in self._client.list(
                    ResourceSlice, field_selector=f"spec.driver={self._driver},spec.nodeName={node}"
                ).items
            ]
            claims = self._client.list(ResourceClaim).items if slices else ()
        except ForbiddenError:
            return ()
        return tuple(CutParts(self._driver, slices, claims).lines(devices))

    def _exists(self, kind: Any, name: str, namespace: str) -> bool:
        """Whether an object exists; what may not be read counts as existing."""
        from dracaena.kube.errors import ForbiddenError, NotFoundError

        try:
            self._client.get(kind, name, namespace=namespace)
        except NotFoundError:
            return False
        except ForbiddenError:
            return True
        return True

    def _names(self, kind: Any, namespace: str = "") -> list[str]:
        """Return the names of all objects of a kind, of one namespace or of all; none if they may not be listed."""
        from dracaena.kube.errors import ForbiddenError

        try:
            return [item.metadata.name for item in self._client.list(kind, namespace=namespace).items]
        except ForbiddenError:
            return []

    def _events(self, uid: str) -> Sequence[Event] | None:
        """Return the Events about an object; None when they may not be read."""
        from dracaena.kube.errors import ForbiddenError
        from dracaena.kube.events import Event

        selector = f"involvedObject.uid={uid}"
        try:
            return self._client.list(Event, namespace=self._namespace, field_selector=selector).items
        except ForbiddenError:
            return None


def newest(events: Iterable[Event]) -> LastEvent | None:
    """Return the controller's last message; None if there is none, or no longer (Events live for an hour)."""
    from dracaena.api.reasons import IGNORED_EVENT

    ours = [event for event in events if event.source.component == CONTROLLER and event.reason != IGNORED_EVENT]
    if not ours:
        return None
    last = max(ours, key=lambda event: (event.last_timestamp or "", event.metadata.name))
    return LastEvent(last.reason, last.message, last.type == "Warning", last.count, last.last_timestamp or "")


def _refusal(events: Iterable[Event], alias: str) -> str:
    """Return why kube-controller-manager last made no claim for an entry of a pod, such as a quota; "" if unknown."""
    ours = [
        one for one in events if one.reason == CLAIM_NOT_MADE and one.message.startswith(f"PodResourceClaim {alias}:")
    ]
    last = max(ours, key=lambda event: (event.last_timestamp or "", event.metadata.name), default=None)
    return last.message.partition(": ")[2] if last is not None else ""


def _ignored(events: Iterable[Event]) -> Iterator[str]:
    """Yield what has no effect in the pod and its claims, as the controller found it."""
    from dracaena.api.reasons import IGNORED_EVENT

    texts = [one.message for one in events if one.source.component == CONTROLLER and one.reason == IGNORED_EVENT]
    for text in dict.fromkeys(texts):
        yield f"ignored: {text}"


def _decision(claim: ResourceClaim, driver: str) -> tuple[Decision | None, tuple[str, ...]]:
    from dracaena.api.decision import read_decision

    try:
        decision = read_decision(claim, driver)
    except BadInputError as error:
        return None, (str(error),)
    return decision, () if decision is not None else (
        "it was not allocated by Dracaena: no decision is recorded on it",
    )


def _class_names(spec: Mapping[str, Any]) -> list[str]:
    """Return the classes that a claim names, each once, whatever else is in its spec."""
    devices = spec.get("devices")
    requests = devices.get("requests") if isinstance(devices, dict) else None
    parts: list[Any] = []
    for request in requests if isinstance(requests, list) else ():
        if isinstance(request, dict):
            parts += [request.get("exactly"), *(request.get("firstAvailable") or ())]
    names = [part.get("deviceClassName") for part in parts if isinstance(part, dict)]
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def _pod_reasons(
    pod: Pod, state: str, claims: Sequence[ClaimAnswer], event: LastEvent | None, driver: str, *, may_read_events: bool
) -> Iterator[str]:
    yield from _extended_resource_reasons(pod, state, driver)
    if state == "no-claims":
        yield "it names no ResourceClaims, so Dracaena does not handle it"
    if state == "allocated" and not pod.spec.scheduling_gates:
        yield _scheduling(pod)
    if state == "allocated" and event is not None and event.warning:
        yield from _in_words(event)
    if state != "waiting":
        return
    # Do not repeat what the controller's last Event says.
    words = event.message if event is not None and event.warning else ""
    for claim in claims:
        reasons = [reason for reason in claim.reasons if claim.state != "allocated" and reason not in words]
        yield from (f"claim {claim.name}: {reason}" for reason in reasons)
        if claim.state == "deleting":
            yield f"claim {claim.name}: it is being deleted"
    if event is not None and event.warning:
        yield from _in_words(event)
    elif not may_read_events:
        yield f"why it waits is in its Events, which you may not read: {_describe(pod)} shows them"
    elif not pod.spec.scheduling_gates and not any(claim.reasons for claim in claims):
        yield (
            "the controller has said nothing about it in the last hour: if it has waited for more than a few seconds, "
            "check whether a controller runs and leads (its /readyz says so)"
        )


def _extended_resource_reasons(pod: Pod, state: str, driver: str) -> Iterator[str]:
    """Yield what is wrong with extended resources that the pod asks for, with or without claims."""
    from dracaena.api.extended_resources import advice, given, gpu_resources, seen

    if state in ("ended", "deleting"):
        return
    every = (*pod.spec.init_containers, *pod.spec.containers)
    asked = {name for one in every for name, amount in one.resources.requests.items() if str(amount) != "0"}
    for name in gpu_resources(asked, driver):
        yield given(name) if pod.spec.node_name else f"it {seen(name)}: it needs {advice(name, driver)}"


def _describe(pod: Pod) -> str:
    return f"kubectl describe pod {pod.metadata.name} --namespace {pod.metadata.namespace}"


def _in_words(event: LastEvent) -> Iterator[str]:
    """Yield what the controller says, and each thing that would help by itself."""
    from dracaena.api.reasons import without_help

    times = f", {event.count} times" if event.count > 1 else ""
    why, remedies = without_help(event.message)
    yield f"{why} ({event.reason}, last sent at {event.last}{times})"
    yield from (f"would help: {remedy}" for remedy in remedies)


def _gate_reasons(pod: Pod, state: str, driver: str, no_leader: str | None) -> Iterator[str]:
    """Yield what holds a pod at its scheduling gates."""
    from dracaena.api.gates import gates_of_others
    from dracaena.api.names import allocation_gate

    if not pod.spec.scheduling_gates or state in ("ended", "deleting"):
        return
    others = gates_of_others(pod, driver)
    if others:
        yield f"scheduling gates hold it back until whoever set them removes them: {', '.join(others)}"
        return
    goes = {
        "allocated": "and its GPUs are allocated: the controller removes it next",
        "no-claims": "without asking for devices: the controller removes it at once",
    }.get(state, "until the controller has allocated its GPUs")
    yield f"it is at the scheduling gate {allocation_gate(driver)} {goes}"
    if no_leader is not None:
        yield f"{no_leader}. Pods stay at the gate until one does"


def _scheduling(pod: Pod) -> str:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"kube-scheduler has not bound it: {condition.message or condition.reason}"
    return "kube-scheduler has yet to bind it"
