"""Each check with a healthy installation, and with one fault planted; and whatever objects may hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from dracaena.api.resource_objects import ResourceSlice
from dracaena.api.topology_levels import RACK
from dracaena.cli.installation.control_plane import DRA, LIMITING, NEEDED, RIGHTS
from dracaena.cli.installation.examination import CHECKS, examine
from dracaena.cli.installation.nodes import SIGNS
from dracaena.cli.installation.snapshot import Finding, Listing, Right, Snapshot, State
from support.allocation import DRIVER
from support.installation import CHART, changed, healthy, page, places, rendered

Fault = Callable[[Snapshot], Snapshot]


def at(kind: str, change: Callable[[list[Any]], Any]) -> Fault:
    return lambda snapshot: changed(snapshot, kind, change)


def without(name: str) -> Callable[[list[Any]], None]:
    def remove(documents: list[Any]) -> None:
        documents[:] = [one for one in documents if one["metadata"]["name"] != name]

    return remove


def put(*path: Any) -> Callable[[list[Any]], None]:
    """Return a change that sets the last of a path, from the list of all objects, making what is missing."""
    *steps, last, value = path

    def change(value_at_step: Any) -> None:
        for step, following in zip(steps, [*steps[1:], last], strict=True):
            empty: Any = [] if isinstance(following, int) else {}
            value_at_step = value_at_step[step] if isinstance(step, int) else value_at_step.setdefault(step, empty)
        value_at_step[last] = value

    return change


def repaged(**spec: Any) -> Fault:
    """The slice of worker-1 with other fields of its spec."""

    def change(snapshot: Snapshot) -> Snapshot:
        document = msgspec.to_builtins(page("worker-1"))
        document["spec"] = {**document["spec"], **spec}
        return replace(snapshot, slices=(msgspec.convert(document, ResourceSlice), *snapshot.slices[1:]))

    return change


def event(reason: str, message: str, node: str = "worker-1") -> dict[str, Any]:
    about = {"kind": "Node", "name": node}
    return {"metadata": {"name": "e"}, "type": "Warning", "reason": reason, "message": message, "involvedObject": about}


def devices(count: int) -> list[dict[str, Any]]:
    tainted: list[dict[str, Any]] = msgspec.to_builtins(page("worker-1"))["spec"]["devices"]
    return [*tainted[count:], *({"name": f"bare-{number}"} for number in range(count))]


RAN = {"metadata": {"name": "x"}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "worker-2"}}
LIST_NODES = Right("list", "", "nodes")
NEVER = {"conditions": [{"type": "Ready", "status": "False"}]}
PULLS = {**NEVER, "containerStatuses": [{"name": "p", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}

LEVELS = '["example.com/block", "rack"]'


def levelled(*by_node: dict[str, str]) -> Fault:
    """Levels named block and rack, and the labels of the first nodes."""

    def change(snapshot: Snapshot) -> Snapshot:
        annotation = put(0, "metadata", "annotations", {f"{DRIVER}/topology-levels": LEVELS})
        snapshot = changed(snapshot, "deployments", annotation)
        for place, own in enumerate(by_node):
            for key, value in own.items():
                snapshot = changed(snapshot, "nodes", put(place, "metadata", "labels", key, value))
        return snapshot

    return change


FAULTS: tuple[tuple[str, Fault, str], ...] = (
    ("server", lambda one: replace(one, too_old="1.35 is too old: an admin has to update"), "an admin has to update"),
    (
        "api",
        lambda one: replace(one, resources={**one.resources, DRA: frozenset({"deviceclasses"})}),
        "does not serve resourceclaims, resourceclaimtemplates, resourceslices in resource.k8s.io/v1",
    ),
    ("classes", at("deviceclasses", list.clear), "there is no DeviceClass gpu.dracaena.dev"),
    (
        "classes",
        at("deviceclasses", put(0, "spec", "selectors", [])),
        "no selector of DeviceClass gpu.dracaena.dev names gpu.dracaena.dev",
    ),
    (
        "classes",
        at("deviceclasses", put(0, "spec", "selectors", 0, "cel", "expression", f'device.driver == "{DRIVER}" &&')),
        "DeviceClass gpu.dracaena.dev: spec.selectors[0]",
    ),
    (
        "classes",
        at(
            "deviceclasses",
            put(
                0,
                "metadata",
                "managedFields",
                [{"manager": each, "fieldsV1": {"f:spec": {}}} for each in ("helm", "kubectl-edit")],
            ),
        ),
        "the spec of DeviceClass gpu.dracaena.dev was written by helm, kubectl-edit",
    ),
    (
        "policies",
        at("validatingadmissionpolicybindings", without(f"own-slices.{DRIVER}")),
        f"policy own-slices.{DRIVER} has no binding",
    ),
    (
        "policies",
        at("mutatingadmissionpolicies", without(f"gate.{DRIVER}")),
        f"the binding of policy gate.{DRIVER} is there and the policy is not",
    ),
    (
        "policies",
        at(
            "validatingadmissionpolicies",
            put(0, "status", {"typeChecking": {"expressionWarnings": [{"fieldRef": "spec.validations[0]"}]}}),
        ),
        "does not fit its types, at spec.validations[0]",
    ),
    (
        "policies",
        lambda one: changed(
            changed(one, "validatingadmissionpolicies", without(f"claims.{DRIVER}")),
            "validatingadmissionpolicybindings",
            without(f"claims.{DRIVER}"),
        ),
        "the policies claims are missing",
    ),
    ("program-rights", at("clusterroles", without(f"controller.{DRIVER}")), f"ClusterRole controller.{DRIVER}"),
    (
        "program-rights",
        at("clusterrolebindings", put(0, "subjects", 0, "namespace", "elsewhere")),
        "is for elsewhere, and the programs run in gpu-system",
    ),
    (
        "versions",
        at("pods", put(3, "metadata", "labels", "app.kubernetes.io/version", "0.0.9")),
        "pods of several versions run (0.0.9=1, 0.1.0=3)",
    ),
    ("versions", lambda one: replace(one, command_version="0.2.0"), "have version 0.1.0 and this command has 0.2.0"),
    ("versions", at("pods", list.clear), "no pod of the chart runs"),
    ("controller", at("deployments", list.clear), "there is no Deployment of the controller"),
    ("controller", at("deployments", put(0, "status", {})), "0 of 2 replicas"),
    ("controller", at("pods", put(0, "status", PULLS)), "not ready (ImagePullBackOff): pods controller-0"),
    ("leader", lambda one: replace(one, no_leader="no controller leads"), "no controller leads: no pod gets GPUs"),
    (
        "pod-security",
        at("namespaces", put(0, "metadata", "labels", {"pod-security.kubernetes.io/enforce": "baseline"})),
        "namespace gpu-system has pod-security.kubernetes.io/enforce=baseline",
    ),
    ("plugins", at("daemonsets", list.clear), "there is no DaemonSet of the plugin"),
    ("plugins", at("daemonsets", put(0, "status", "numberReady", 1)), "1 of 2 plugins"),
    ("plugins", at("daemonsets", put(0, "status", {})), "is for no node"),
    ("plugins", at("pods", put(2, "status", NEVER)), "not ready (Pending): pods plugin-worker-1"),
    ("gpu-nodes", at("pods", list.pop), "node worker-2 has GPUs (nvidia.com/gpu.present) and no plugin: its DaemonSet"),
    (
        "gpu-nodes",
        lambda one: changed(
            changed(one, "pods", list.pop), "nodes", put(1, "spec", "taints", [{"key": "team", "effect": "NoSchedule"}])
        ),
        "no plugin: its DaemonSet leaves it out (with taint team that the pod does not tolerate)",
    ),
    (
        "gpu-nodes",
        at("nodes", put(2, "status", {"capacity": {"nvidia.com/gpu": "8"}})),
        "control-plane has GPUs (nvidia.com/gpu) and no plugin: its DaemonSet leaves it out (not matching",
    ),
    ("gpu-nodes", at("nodes", list.clear), "no node has a label or a capacity"),
    ("pools", lambda one: replace(one, slices=one.slices[:1]), "nothing is published there"),
    ("pools", at("pods", list.pop), "GPUs of nodes worker-2 are published and no plugin runs there"),
    ("pools", repaged(devices=[]), "the pool of node worker-1 is of no use: it has no device"),
    ("pools", repaged(pool={"name": "worker-1", "generation": 1, "resourceSliceCount": 2}), "has 1 of 2 slices"),
    ("pools", lambda one: replace(one, unread_slices=("odd",)), "ResourceSlices odd cannot be read"),
    ("taints", repaged(devices=devices(1)), "1 of 4 devices of node worker-1 lack the taint"),
    (
        "other-drivers",
        at("nodes", put(0, "status", "allocatable", {"nvidia.com/gpu": "8"})),
        "NVIDIA's device plugin gives out the GPUs of nodes worker-1 too",
    ),
    ("other-drivers", at("resourceslices", lambda found: found.append(RAN)), "DRA driver gives out the GPUs of nodes"),
    ("levels", levelled({}, {}), "no node with GPUs has the label example.com/block of `topology-levels`"),
    (
        "levels",
        levelled({"example.com/block": "b", "rack": "r"}, {"example.com/block": "b"}),
        "1 of 2 nodes with GPUs lack the label rack of `topology-levels`, and jobs are not kept together there: an",
    ),
    (
        "levels",
        levelled({"example.com/block": "b", "rack": "1"}, {"example.com/block": "b", "rack": "2"}),
        "the label rack of `topology-levels` has another value on each node",
    ),
    (
        "levels",
        levelled({"example.com/block": "1", "rack": "r"}, {"example.com/block": "2", "rack": "r"}),
        "`topology-levels` names example.com/block before rack, which is the larger one",
    ),
    (
        "levels",
        at("deployments", put(0, "metadata", "annotations", {f"{DRIVER}/topology-levels": '"rack"'})),
        f"the annotation {DRIVER}/topology-levels of the controller's Deployment is not a list of texts",
    ),
    (
        "levels",
        at("deployments", put(0, "metadata", "annotations", {f"{DRIVER}/topology-levels": '["kueue"]'})),
        "`topology-levels` is kueue and there is no Topology of Kueue that names levels",
    ),
    (
        "levels",
        lambda one: changed(
            at("deployments", put(0, "metadata", "annotations", {f"{DRIVER}/topology-levels": '["kueue"]'}))(one),
            "topologies",
            lambda found: found.append({"metadata": {"name": "t"}, "spec": {"levels": [{"nodeLabel": "pod/rack"}]}}),
        ),
        "no node with GPUs has the label pod/rack of `topology-levels`",
    ),
    ("levels", at("nodes", put(0, "metadata", "labels", RACK, "r7")), f"1 of 2 nodes with GPUs lack the label {RACK}"),
    (
        "reports",
        at("events", lambda found: found.append(event("GpusWithoutClaim", "the toolkit gives GPUs"))),
        "nodes worker-1 reported GpusWithoutClaim: the toolkit gives GPUs",
    ),
    (
        "namespaces",
        at("namespaces", put(1, "metadata", "labels", f"{DRIVER}/rewrite", "yes")),
        f"namespace research has the label {DRIVER}/rewrite=yes, which does nothing",
    ),
    (
        "namespaces",
        at("mutatingadmissionpolicies", list.clear),
        f"namespace research has the label {DRIVER}/rewrite=true and no policy obeys it",
    ),
    (
        "quotas",
        at("namespaces", put(1, "metadata", "annotations", {f"{DRIVER}/quota": "eight"})),
        "the quota of namespace research cannot be read",
    ),
    (
        "your-rights",
        lambda one: replace(one, rights={**one.rights, LIST_NODES: False}),
        "you may not list nodes in all namespaces, which `dracaena status` does",
    ),
)


def said(snapshot: Snapshot, check: str) -> list[Finding]:
    return [one for one in examine(snapshot) if one.check == check]


def test_a_healthy_installation_has_nothing_to_mend_and_an_answer_to_each_check() -> None:
    found = examine(healthy())
    assert [str(one) for one in found if one.state is not State.OK] == []
    assert {one.check for one in found} == {check.name for check in CHECKS}
    assert examine(healthy()) == found


@pytest.mark.parametrize(("check", "fault", "words"), FAULTS, ids=[f"{check}: {words}" for check, _, words in FAULTS])
def test_a_planted_fault_is_found_by_its_check(check: str, fault: Fault, words: str) -> None:
    found = said(fault(healthy()), check)
    assert {one.state for one in found} == {State.TO_FIX}
    assert any(words in str(one) for one in found), [str(one) for one in found]


def test_each_check_has_a_planted_fault() -> None:
    never_wrong = {"taint-rules"}  # rules of an admin are no fault
    assert {check for check, _, _ in FAULTS} | never_wrong == {check.name for check in CHECKS}


@pytest.mark.parametrize("kind", sorted({kind for check in CHECKS for kind in check.needs}))
def test_what_could_not_be_read_is_not_called_right(kind: str) -> None:
    snapshot = healthy()
    unread = replace(snapshot, kinds={**snapshot.kinds, kind: Listing(why_unread="an admin has to grant `list`")})
    for check in CHECKS:
        found = said(unread, check.name)
        if kind in check.needs:
            assert [str(one) for one in found] == [f"{kind} could not be read (an admin has to grant `list`)"]
            assert {one.state for one in found} == {State.UNKNOWN}


def test_what_the_server_does_not_say_is_not_called_right() -> None:
    silent = replace(
        healthy(), server_version="", resources=dict.fromkeys(NEEDED), rights=dict.fromkeys(healthy().rights)
    )
    for name in ("server", "api", "your-rights"):
        assert {one.state for one in said(silent, name)} == {State.UNKNOWN}


def test_levels_that_are_as_they_should_be_are_counted() -> None:
    found = said(levelled(*({"example.com/block": "b", "rack": "r"} for _ in range(2)))(healthy()), "levels")
    assert [(one.state, str(one)) for one in found] == [
        (State.OK, "nodes with GPUs that are in a domain of a level: block=2, rack=2")
    ]
    assert [one.state for one in said(healthy(), "levels")] == [State.OK], "without a label nobody asked for racks"


def test_nodes_left_to_kube_scheduler_are_named_and_no_fault() -> None:
    found = said(repaged(devices=devices(4))(healthy()), "taints")
    assert {one.state for one in found} == {State.OK}
    assert str(found[-1]) == "nodes left to kube-scheduler (the setting `allocator`): worker-1"


def test_an_installation_without_policies_that_limit_is_a_choice() -> None:
    def only_mutating(documents: list[Any]) -> None:
        documents.clear()

    snapshot = changed(healthy(), "validatingadmissionpolicies", only_mutating)
    found = said(changed(snapshot, "validatingadmissionpolicybindings", only_mutating), "policies")
    assert [str(one) for one in found] == [
        "no policy limits what the programs' tokens may write (the chart's admissionPolicies.enabled is off)"
    ]


def test_many_names_are_cut() -> None:
    nodes = [f"worker-{number}" for number in range(9)]
    found = said(at("events", lambda all_: all_.extend(event("X", "y", one) for one in nodes))(healthy()), "reports")
    assert str(found[0]).startswith("nodes worker-0, worker-1, worker-2, worker-3, worker-4 and 4 more reported X: y")


def test_what_the_checks_know_of_the_chart_is_what_it_renders() -> None:
    names = {one["metadata"]["name"].removesuffix(f".{DRIVER}") for one in rendered() if "Policy" in one["kind"]}
    assert set(LIMITING) <= names
    (daemon_set,) = [one for one in rendered() if one["kind"] == "DaemonSet"]
    terms = daemon_set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    keys = [
        rule["key"]
        for term in terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        for rule in term["matchExpressions"]
    ]
    assert set(keys) == {*SIGNS, "feature.node.kubernetes.io/cpu-model.vendor_id"}


def test_rights_are_those_of_the_page_about_the_command() -> None:
    page_text = (CHART.parents[4] / "docs" / "command.md").read_text(encoding="utf-8")
    text = page_text.partition("```yaml\n")[2].partition("```")[0]
    for role in yaml.safe_load_all(text):
        command = role["metadata"]["name"].removeprefix("dracaena-")
        granted = {
            Right(verb, group, resource)
            for rule in role["rules"]
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        assert set(RIGHTS[command]) <= granted


HOSTILE: tuple[Any, ...] = (None, 7, True, "", "text", "{}", "\u202e\x1b[31m", [], ["x"], {}, {"a": [1]}, -1, 1e308)


@pytest.mark.parametrize("kind", sorted(kind for kind, found in healthy().kinds.items() if found.objects))
def test_no_object_makes_a_check_fail(kind: str) -> None:
    snapshot = healthy()
    document: Any = copy.deepcopy(snapshot.kinds[kind].objects[-1])
    asked = [check for check in CHECKS if kind in check.needs]
    for number, (path, _) in enumerate(places(document)):
        for wrong in (HOSTILE * 2)[number % len(HOSTILE) :][:3] if path else ({},):
            hostile = copy.deepcopy(document)
            holder: Any = hostile
            for step in path[:-1]:
                holder = holder[step]
            if path:
                holder[path[-1]] = wrong
            else:
                hostile = wrong
            listing = Listing((*snapshot.kinds[kind].objects[:-1], hostile))
            hostile_snapshot = replace(snapshot, kinds={**snapshot.kinds, kind: listing})
            for check in asked:
                for one in check.find(hostile_snapshot):
                    assert str(one)
