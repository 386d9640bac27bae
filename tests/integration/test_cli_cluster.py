"""`dracaena explain` and `dracaena status` on a cluster: what users read there, decided or not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml

from dracaena.api.names import DELETE_PROTECTION_FINALIZER, allocation_gate
from dracaena.api.objects import Namespace, Node, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dracaena.cli.main import main
from dracaena.demo.apiserver import ApiServer
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ForbiddenError
from dracaena.kube.events import Event
from dracaena.kube.transport import Transport
from support.allocation import DRIVER, blocks, device_name, machine, request
from support.api_ground import ApiGround
from support.controller import NAMESPACE, ask, create_pod, publish, running_controller, transport
from support.kube import wait_for
from support.mig_nodes import mig_slices, part_name
from support.mig_tables import A100, MigPart

SEVEN = machine("seven", blocks(3, 4, inside="PIX", outside="PHB"), product_name="NVIDIA A100")
TWO = machine("two", blocks(2, inside="NV2", outside="SYS"), product_name="NVIDIA L40S")

Run = Callable[..., SimpleNamespace]

pytestmark = pytest.mark.usefixtures("logs_as_before")


@pytest.fixture
def client(server: ApiGround, tmp_path: Path) -> KubeClient:
    made = KubeClient(transport(server, tmp_path))
    publish(made, {"a": SEVEN, "b": TWO})
    return made


@pytest.fixture
def run(tmp_path: Path, client: KubeClient, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process on the cluster; the result has code, out and err."""

    def _run(*arguments: str) -> SimpleNamespace:
        code = main([*arguments, "--kubeconfig", str(tmp_path / "kubeconfig")])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return _run


@pytest.fixture
def decided(client: KubeClient, tmp_path: Path, server: ApiGround) -> None:
    """A pod that got four GPUs, and one that waits for nine."""
    ask(client, "train", {"x": 3, "y": 1})
    ask(client, "huge", {"nine": 9})
    with running_controller(transport(server, tmp_path)):
        wait_for(lambda: {"x", "y"} <= allocated_names(client), "the claims of train")
        wait_for(lambda: any(e.metadata.name.startswith("huge.") for e in events(client)), "an Event on huge")


def allocated_names(client: KubeClient) -> set[str]:
    items = client.list(ResourceClaim, namespace=NAMESPACE).items
    return {item.metadata.name for item in items if item.status.allocation is not None}


def events(client: KubeClient) -> tuple[Event, ...]:
    return client.list(Event, namespace=NAMESPACE).items


def document(answer: SimpleNamespace) -> Any:
    assert (answer.code, answer.err) == (0, "")
    return json.loads(answer.out)


@pytest.mark.usefixtures("decided")
def test_a_pod_with_gpus_is_told_which_and_why(run: Run) -> None:
    answer = run("explain", "pod", "train")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "pod default/train has its GPUs and is not bound yet"
    assert lines[1] == "  kube-scheduler has yet to bind it"
    assert "claim default/x has 3 devices, reserved for train" in lines
    assert f"  a/{device_name(SEVEN, 3)}" in lines
    assert any(line.startswith("  4 of the GPUs of a: 6 pairs PIX (bandwidth") for line in lines)
    assert sum(line.startswith("  next best: ") for line in lines) == 1
    assert lines[-3:] == [
        "claim default/y has 1 device, reserved for train",
        f"  a/{device_name(SEVEN, 6)}",
        "  decided together with claim default/x",
    ]


@pytest.mark.usefixtures("decided")
def test_the_pods_of_a_workload_are_explained_and_those_that_wait_come_first(run: Run, client: KubeClient) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "many", "uid": "uid-many", "controller": True}
    for name in ("train", "huge"):
        client.merge_patch(Pod, name, {"metadata": {"ownerReferences": [owner]}}, namespace=NAMESPACE)
    answer = run("explain", "job/many")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[:4] == ["job default/many has 2 pods", "  1 waits", "", "pod default/huge waits"]
    assert "pod default/train has its GPUs and is not bound yet" in lines
    found = document(run("explain", "jobs", "many", "-o", "json"))
    assert (found["kind"], found["name"], found["podCount"]) == ("job", "default/many", 2)
    assert [one["pod"] for one in found["pods"]] == ["default/huge", "default/train"]
    refused = run("explain", "job/manyy")
    assert refused.code == 2
    assert "no pod in namespace default belongs to job manyy: did you mean many?" in refused.err


@pytest.mark.usefixtures("decided")
def test_a_pod_is_named_as_kubectl_names_it(run: Run) -> None:
    plain = run("explain", "pod", "train").out
    assert run("explain", "pod/train").out == run("explain", "po", "train").out == plain


def test_what_was_said_in_vain_is_told_beside_what_the_pod_got(
    run: Run, client: KubeClient, tmp_path: Path, server: ApiGround, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one Event, and in explain, which tells of running pods too."""
    other = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER}}], "config": [other]}}
    client.create(ResourceClaim, {"metadata": {"name": "c"}, "spec": spec}, namespace=NAMESPACE)
    create_pod(client, "shared", resourceClaims=[{"name": "c", "resourceClaimName": "c"}])

    def ignored() -> list[Event]:
        return [one for one in events(client) if one.reason == "ClaimPartsIgnored"]

    with running_controller(transport(server, tmp_path)):
        wait_for(lambda: allocated_names(client) == {"c"}, "the claim")
        wait_for(ignored, "the Event")
    (told,) = ignored()
    text = f"the configuration for gpu.nvidia.com does nothing: all of its requests get devices of {DRIVER}"
    assert f"claim default/c: {text}" in told.message
    capsys.readouterr()  # the controller's log
    reasons = document(run("explain", "pod", "shared", "-o", "json"))["reasons"]
    assert reasons == ["kube-scheduler has yet to bind it", f"ignored: {told.message}"]


@pytest.mark.usefixtures("decided")
def test_only_the_part_of_the_score_that_decided_is_shown_and_all_parts_when_asked_for(run: Run) -> None:
    short, wide = (run("explain", "pod", "train", *option).out for option in ((), ("-o", "wide")))
    assert "  4 of the GPUs of a: 6 pairs PIX (bandwidth: 13 GB/s)\n" in short
    together = " ".join(wide.split())
    for part in ("damage to groups of 8: ", "NUMA nodes: ", "free GPUs: "):
        assert part not in short
        assert part in together


@pytest.mark.usefixtures("decided")
def test_the_json_of_a_pod_holds_the_whole_decision(run: Run) -> None:
    found = document(run("explain", "pod", "train", "-o", "json"))
    assert (found["pod"], found["state"], found["node"]) == ("default/train", "allocated", None)
    x, y = found["claims"]
    assert (x["claim"], x["state"], x["reservedFor"]) == ("default/x", "allocated", ["train"])
    assert x["devices"] == [f"a/{device_name(SEVEN, ordinal)}" for ordinal in (3, 4, 5)]
    assert y["devices"] == [f"a/{device_name(SEVEN, 6)}"]
    assert x["decision"]["links"] == "6 pairs PIX"
    assert x["decision"]["score"]["bandwidth_gb_s"] > 0
    assert x["decision"]["podDevices"] == 4


@pytest.mark.usefixtures("decided")
def test_a_pod_that_fits_nowhere_is_told_what_the_controller_told_it(run: Run) -> None:
    answer = run("explain", "pod", "huge", "-n", "default")
    assert answer.out.splitlines()[0] == "pod default/huge waits"
    assert "claim default/nine has no devices yet" in answer.out
    text = " ".join(answer.out.split())
    assert "2 nodes" in text
    assert "(WaitingForGPUs, last sent at 20" in text


@pytest.mark.usefixtures("decided")
def test_a_claim_is_explained_by_itself_and_with_the_pods_that_wait_for_it(run: Run) -> None:
    assert run("explain", "claim", "x").out.startswith("claim default/x has 3 devices, reserved for train\n")
    waiting = run("explain", "claim", "nine")
    assert waiting.out.startswith("claim default/nine has no devices yet\n\npod default/huge waits\n  ")
    found = document(run("explain", "claim", "nine", "-o", "json"))
    assert (found["state"], found["decision"], [pod["pod"] for pod in found["pods"]]) == (
        "waiting",
        None,
        ["default/huge"],
    )


def test_a_gpu_that_is_cut_on_demand_is_drawn_for_who_may_see_what_others_have_of_it(
    run: Run, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = machine("cut", blocks(2, inside="NV12", outside="SYS"))
    for item in mig_slices("cut", made, [A100, A100]):
        document = {"metadata": {"name": item.metadata.name}, "spec": msgspec.to_builtins(item.spec)}
        client.create(ResourceSlice, document)
    client.create(Namespace, {"metadata": {"name": "other"}})
    parts = {"small": MigPart("1g.10gb", 6, 1, 1), "large": MigPart("4g.40gb", 0, 4, 4)}
    for (name, part), namespace in zip(parts.items(), (NAMESPACE, "other"), strict=True):
        document = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request()]}}}
        client.create(ResourceClaim, document, namespace=namespace)
        given = {"request": "gpus", "driver": DRIVER, "pool": "cut", "device": part_name(made, 1, part)}
        finalizers = {"metadata": {"finalizers": [DELETE_PROTECTION_FINALIZER]}}
        client.merge_patch(ResourceClaim, name, finalizers, namespace=namespace)
        status = {"status": {"allocation": {"devices": {"results": [given]}}}}
        client.merge_patch(ResourceClaim, name, status, namespace=namespace, subresource="status")
    line = f"  {made.gpus[1].uuid}  [4g───────── ·  ·  1g ·]  1g.10gb at 6\n"
    assert line in run("explain", "claim", "small").out

    def refuse(self: KubeClient, kind: type, **how: Any) -> Any:
        if kind is ResourceClaim and not how.get("namespace"):
            raise ForbiddenError("GET resourceclaims", 403, "Forbidden", "no")
        return read(self, kind, **how)

    read = KubeClient.list
    monkeypatch.setattr(KubeClient, "list", refuse)
    assert "[4g" not in run("explain", "claim", "small").out


def test_what_is_missing_is_named_with_who_must_make_it(run: Run, client: KubeClient) -> None:
    entries = [
        {"name": "one", "resourceClaimName": "absent"},
        {"name": "two", "resourceClaimTemplateName": "no-template"},
        {"name": "three", "resourceClaimTemplateName": "template"},
        {"name": "four", "resourceClaimName": "no-class"},
    ]
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "tpyo"}}]}}
    client.create(ResourceClaim, {"metadata": {"name": "no-class"}, "spec": spec}, namespace=NAMESPACE)
    template = {"metadata": {"name": "template"}, "spec": {"spec": spec}}
    client.create(ResourceClaimTemplate, template, namespace=NAMESPACE)
    create_pod(client, "p", resourceClaims=entries)
    found = document(run("explain", "pod", "p", "-o", "json"))
    assert found["state"] == "waiting"
    assert found["reasons"] == [
        "claim default/absent: it does not exist: create it",
        "claim two: ResourceClaimTemplate default/no-template does not exist: did you mean template?",
        "claim three: kube-controller-manager has not generated it from ResourceClaimTemplate template yet",
        "claim default/no-class: DeviceClass tpyo does not exist: an admin has to create it",
    ]
    assert [claim["state"] for claim in found["claims"]] == ["missing", "missing", "missing", "waiting"]


def test_why_a_claim_is_not_made_from_its_template_is_told_in_the_words_of_who_makes_it(
    run: Run, client: KubeClient
) -> None:
    """As kube-controller-manager tells it of a pod above a quota; other entries of the pod have their own words."""
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER}}]}}
    client.create(
        ResourceClaimTemplate, {"metadata": {"name": "template"}, "spec": {"spec": spec}}, namespace=NAMESPACE
    )
    entries = [{"name": name, "resourceClaimTemplateName": "template"} for name in ("one", "two")]
    pod = create_pod(client, "p", resourceClaims=entries)
    for number, words in enumerate(("template not found", "exceeded quota: gpus, used: 2, limited: 2")):
        event = {
            "metadata": {"name": f"p.{number}"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": NAMESPACE, "uid": pod.metadata.uid},
            "reason": "FailedResourceClaimCreation",
            "message": f"PodResourceClaim one: {words}",
            "source": {"component": "resource_claim"},
            "lastTimestamp": f"2026-11-26T13:00:0{number}Z",
        }
        client.create(Event, event, namespace=NAMESPACE)
    yet = "kube-controller-manager has not generated it from ResourceClaimTemplate template yet"
    assert document(run("explain", "pod", "p", "-o", "json"))["reasons"][:2] == [
        f"claim one: {yet}: exceeded quota: gpus, used: 2, limited: 2",
        f"claim two: {yet}",
    ]


def test_gates_claims_without_pods_and_pods_without_claims_are_told_as_such(run: Run, client: KubeClient) -> None:
    ask(client, "gated", {"g": 1}, schedulingGates=[{"name": "example.com/later"}])
    create_pod(client, "plain")
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": DRIVER}}]}}
    client.create(ResourceClaim, {"metadata": {"name": "lonely"}, "spec": spec}, namespace=NAMESPACE)
    gated = run("explain", "pod", "gated").out
    assert "scheduling gates hold it back until whoever set them removes them: example.com/later" in gated
    plain = run("explain", "pod", "plain").out
    assert plain.splitlines() == [
        "pod default/plain asks for nothing that Dracaena gives",
        "  it names no ResourceClaims, so Dracaena does not handle it",
    ]
    assert "no pod uses it: claims get devices when a pod needs them" in run("explain", "claim", "lonely").out


def test_what_holds_a_pod_at_our_gate_is_told_and_that_nobody_leads(run: Run, client: KubeClient) -> None:
    name = allocation_gate(DRIVER)
    ask(client, "gated", {"g": 1}, schedulingGates=[{"name": name}])
    create_pod(client, "plain", schedulingGates=[{"name": name}])
    ask(client, "quota", {"q": 1}, schedulingGates=[{"name": name}, {"name": "example.com/quota"}])
    gated = " ".join(run("explain", "pod", "gated").out.split())
    assert f"it is at the scheduling gate {name} until the controller has allocated its GPUs" in gated
    assert f"no controller has ever led: there is no Lease controller.{DRIVER} in any namespace" in gated
    assert "Pods stay at the gate until one does" in gated
    plain = " ".join(run("explain", "pod", "plain").out.split())
    assert f"gate {name} without asking for devices: the controller removes it at once" in plain
    quota = run("explain", "pod", "quota").out
    assert "until whoever set them removes them: example.com/quota\n" in quota
    assert name not in quota


def test_a_pod_that_asks_for_the_extended_resource_is_told_what_it_needs(run: Run, client: KubeClient) -> None:
    limits = {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}
    create_pod(client, "old", containers=[{"name": "main", "image": "example/app:1.0", "resources": limits}])
    said = " ".join(run("explain", "pod", "old").out.split())
    assert said.startswith("pod default/old asks for nothing that Dracaena gives it asks for the extended resource")
    assert "it asks for the extended resource nvidia.com/gpu, for which Dracaena gives no devices" in said
    assert "the label gpu.dracaena.dev/rewrite=true on the namespace" in said


def test_a_pod_that_asks_for_the_resource_of_a_mig_profile_is_told_what_it_needs(run: Run, client: KubeClient) -> None:
    limits = {"limits": {"nvidia.com/mig-1g.10gb": "2"}, "requests": {"nvidia.com/mig-1g.10gb": "2"}}
    create_pod(client, "old", containers=[{"name": "main", "image": "example/app:1.0", "resources": limits}])
    said = " ".join(run("explain", "pod", "old").out.split())
    assert "of class mig.gpu.dracaena.dev with the selector" in said
    assert "the chart's value rewrite.resourceNames has nvidia.com/mig-1g.10gb: then new pods get claims" in said


def test_an_extended_resource_is_told_of_beside_claims_too(run: Run, client: KubeClient) -> None:
    limits = {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}
    ask(client, "both", {"c": 1}, containers=[{"name": "main", "image": "example/app:1.0", "resources": limits}])
    said = " ".join(run("explain", "pod", "both").out.split())
    assert said.startswith("pod default/both waits it asks for the extended resource nvidia.com/gpu, for which")


def test_a_pod_that_has_an_extended_resource_from_somebody_else_is_not_told_to_change(
    run: Run, client: KubeClient
) -> None:
    limits = {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}
    container = {"name": "main", "image": "example/app:1.0", "resources": limits}
    create_pod(client, "served", containers=[container], nodeName="elsewhere")
    said = run("explain", "pod", "served").out
    assert "its extended resource nvidia.com/gpu is another driver's, or kube-scheduler's own claim" in said
    assert "rewrite" not in said


def test_when_nobody_says_anything_it_asks_for_the_controller(run: Run, client: KubeClient) -> None:
    ask(client, "p", {"c": 1})
    assert "check whether a controller runs and leads" in " ".join(run("explain", "pod", "p").out.split())


def test_an_allocation_of_somebody_else_is_not_taken_for_a_decision(run: Run, client: KubeClient) -> None:
    ask(client, "p", {"c": 1})
    client.merge_patch(
        ResourceClaim, "c", {"metadata": {"finalizers": [DELETE_PROTECTION_FINALIZER]}}, namespace=NAMESPACE
    )
    result = {"request": "gpus", "driver": DRIVER, "pool": "b", "device": device_name(TWO, 1)}
    other = {"request": "gpus", "driver": "nic.example.com", "pool": "b", "device": "nic-0"}
    status = {"allocation": {"devices": {"results": [result, other]}}}
    client.merge_patch(ResourceClaim, "c", {"status": status}, namespace=NAMESPACE, subresource="status")
    found = document(run("explain", "claim", "c", "-o", "json"))
    assert (found["devices"], found["otherDevices"]) == ([f"b/{device_name(TWO, 1)}"], ["nic.example.com/b/nic-0"])
    assert found["reasons"] == ["it was not allocated by Dracaena: no decision is recorded on it"]


@pytest.mark.parametrize("kind", ["pod", "claim"])
def test_what_does_not_exist_is_one_line_and_bad_input(run: Run, kind: str) -> None:
    answer = run("explain", kind, "nobody", "-n", "elsewhere")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"dracaena: {kind} elsewhere/nobody does not exist\n"


@pytest.mark.embedded_only("it goes away")
@pytest.mark.parametrize("command", [("status",), ("explain", "pod", "p")])
def test_a_cluster_that_does_not_answer_is_one_line_and_may_work_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    with ApiServer() as server:
        config = server.kubeconfig()
    (tmp_path / "gone").write_text(yaml.safe_dump(config))
    assert main([*command, "--kubeconfig", str(tmp_path / "gone")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dracaena: GET /api")
    assert len(err.splitlines()) == 1


def test_the_namespace_of_the_kubeconfig_is_meant_when_none_is_given(
    server: ApiGround, client: KubeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = yaml.safe_load(yaml.safe_dump(server.kubeconfig()))
    config["contexts"][0]["context"]["namespace"] = "research"
    (tmp_path / "other").write_text(yaml.safe_dump(config))
    assert main(["explain", "pod", "p", "--kubeconfig", str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err == "dracaena: pod research/p does not exist\n"


def _right(path: str) -> tuple[str, str, str]:
    """Return API group, resource and verb of a GET."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    return group, rest[0], "get" if len(rest) > 1 else "list"


def _rights(role: str) -> set[tuple[str, str, str]]:
    """Return what a ClusterRole of docs/command.md permits."""
    page = (Path(__file__).parents[2] / "docs" / "command.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (rules,) = (one["rules"] for one in yaml.safe_load_all(text) if one["metadata"]["name"] == role)
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.usefixtures("decided")
def test_the_roles_of_the_page_permit_just_what_the_commands_ask_for(
    run: Run, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_pod(client, "later", resourceClaims=[{"name": "one", "resourceClaimTemplateName": "no-template"}])
    asked: set[tuple[str, str, str]] = set()
    send, read = Transport.request, Transport.read

    def sent(self: Transport, method: str, path: str, **options: Any) -> bytes:
        assert method == "GET"
        asked.add(_right(path))
        return send(self, method, path, **options)

    def listed(self: Transport, path: str, **options: Any) -> bytes | None:
        asked.add(_right(path))
        return read(self, path, **options)

    monkeypatch.setattr(Transport, "request", sent)
    monkeypatch.setattr(Transport, "read", listed)
    explained = (("pod", "train"), ("pod", "huge"), ("pod", "later"), ("claim", "x"), ("claim", "nine"))
    assert [run("explain", *what).code for what in explained] == [0] * len(explained)
    assert asked == _rights("dracaena-explain")
    asked.clear()
    assert [run("status").code, run("status", "a").code] == [0, 0]
    read_once = {"events", "deployments"}
    watched = {(group, resource, "watch") for group, resource, _ in asked if resource not in read_once}
    assert asked | watched == _rights("dracaena-status"), "`--watch` needs the others"


@pytest.mark.usefixtures("decided")
def test_a_pod_whose_events_may_not_be_read_is_explained_without_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Transport.read

    def refused(self: Transport, path: str, **options: Any) -> bytes | None:
        if _right(path) == ("", "events", "list"):
            raise ForbiddenError(f"GET {path}", 403, "Forbidden", "events is forbidden")
        return read(self, path, **options)

    monkeypatch.setattr(Transport, "read", refused)
    answer = run("explain", "pod", "huge")
    assert (answer.code, answer.err) == (0, "")
    said = " ".join(answer.out.split())
    assert "pod default/huge waits why it waits is in its Events, which you may not read" in said
    assert "kubectl describe pod huge --namespace default shows them" in said
    assert "has told nothing" not in said


@pytest.mark.usefixtures("decided")
def test_status_draws_each_node_with_who_has_what(run: Run) -> None:
    answer = run("status")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "a: NVIDIA A100, 7 GPUs: 3 free, 4 used"
    assert sum("[free]" in line for line in lines) == 5
    assert sum("[default/x for train]" in line for line in lines) == 3
    assert sum("[default/y for train]" in line for line in lines) == 1
    assert "     ├─ PIX:3" in lines
    assert lines[-1] == "2 nodes, 9 GPUs: 5 free, 4 used; 2 claims with devices"
    assert run("status", "b").out.splitlines()[0] == "b: NVIDIA L40S, 2 GPUs: 2 free"


@pytest.mark.usefixtures("decided")
def test_status_shows_what_namespaces_may_have_and_hold(
    run: Run, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def annotate(text: str | None) -> None:
        client.merge_patch(Namespace, NAMESPACE, {"metadata": {"annotations": {f"{DRIVER}/quota": text}}})

    annotate('{"gpus": 4, "gpusByProduct": {"NVIDIA L40S": 2}}')
    try:
        lines = [line.split() for line in run("status").out.splitlines()]
        place = lines.index(["NAMESPACE", "HOLDS", "MAY", "HAVE", "OF"])
        assert lines[place + 1 : place + 4] == [
            [NAMESPACE, "4", "4", "GPUs"],
            [NAMESPACE, "0", "2", "GPUs", "of", "product", "NVIDIA", "L40S"],
            [],
        ]
        assert "MAY HAVE" not in run("status", "a").out
        (told,) = document(run("status", "-o", "json"))["quotas"]
        assert told["limits"][0] == {"counted": "gpus", "name": "", "limit": 4, "held": 4}
        annotate('{"gpu": 4}')
        assert f"the quota of namespace {NAMESPACE} cannot be read: gpu: unknown, expected" in run("status").out
        read = Transport.read

        def refused(self: Transport, path: str, **options: Any) -> bytes | None:
            if _right(path) == ("", "namespaces", "list"):
                raise ForbiddenError(f"GET {path}", 403, "Forbidden", "namespaces is forbidden")
            return read(self, path, **options)

        monkeypatch.setattr(Transport, "read", refused)
        assert (run("status").code, "quota" in run("status").out) == (0, False)
    finally:
        annotate(None)


@pytest.mark.usefixtures("decided")
def test_the_json_of_status_names_each_device_and_its_holders(run: Run) -> None:
    found = document(run("status", "-o", "json"))
    assert {name: count for name, count in found["summary"].items() if count} == {
        "nodes": 2,
        "gpus": 9,
        "free": 5,
        "used": 4,
        "claims": 2,
    }
    a = found["nodes"][0]
    assert (a["name"], a["counts"]["free"], a["remarks"], a["migDevices"]) == ("a", 3, [], [])
    assert a["gpus"][3]["heldBy"] == [{"claim": "default/x", "pods": ["train"]}]
    assert a["gpus"][0] | {"uuid": ""} == {
        "device": device_name(SEVEN, 0),
        "index": 0,
        "uuid": "",
        "product": "NVIDIA A100",
        "state": "free",
        "heldBy": [],
    }


def test_many_nodes_are_one_line_each_and_say_what_keeps_them_from_being_used(run: Run, client: KubeClient) -> None:
    publish_more(client, "c", "d")
    client.merge_patch(Node, "c", {"spec": {"unschedulable": True}})
    client.delete(Node, "d")
    lines = run("status").out.splitlines()
    assert lines[0].split() == ["NODE", "GPUS", "FREE", "PARTIAL", "FAILED", "CLAIMS", "REMARKS"]
    assert lines[1].split() == ["a", "NVIDIA", "A100", "7", "of", "7", "0", "0", "0"]
    assert lines[3].endswith("cordoned")
    assert lines[4].endswith("there is no such Node")
    assert lines[-1] == "4 nodes, 13 GPUs: 9 free, 4 closed to pods; 0 claims with devices"
    assert "PIX" not in "".join(lines)
    assert "└─ " in run("status", "d").out


def publish_more(client: KubeClient, *names: str) -> None:
    for name in names:
        found = client.list(ResourceSlice, field_selector="spec.nodeName=b").items[0]
        spec = msgspec.to_builtins(found.spec) | {"nodeName": name}
        spec["pool"] = spec["pool"] | {"name": name}
        client.create(Node, {"metadata": {"name": name}})
        client.create(ResourceSlice, {"metadata": {"name": f"slice-{name}"}, "spec": spec})


def test_a_node_that_is_not_there_or_publishes_nothing_is_one_line(run: Run, client: KubeClient) -> None:
    client.create(Node, {"metadata": {"name": "cpu-only"}})
    answer = run("status", "nope")
    assert (answer.code, answer.err) == (2, "dracaena: node nope does not exist\n")
    client.create(Node, {"metadata": {"name": "worker-11"}})
    publish_more(client, "worker-1")
    answer = run("status", "worker_1")
    assert (answer.code, answer.err) == (2, "dracaena: node worker_1 does not exist: did you mean worker-1?\n")
    answer = run("status", "cpu-only")
    assert (answer.code, answer.err) == (2, f"dracaena: node cpu-only publishes no devices of {DRIVER}\n")


def test_a_node_that_is_named_is_shown_with_what_our_components_said_of_it(
    run: Run, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(name: str, component: str, about: str, at: str, count: int = 1) -> None:
        event = {
            "metadata": {"name": name},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": about},
            "source": {"component": component},
            "type": "Warning",
            "reason": "GpuUnhealthy",
            "message": f"gpu-0 of {about} on {at}",
            "count": count,
            "firstTimestamp": at,
            "lastTimestamp": at,
        }
        client.create(Event, event, namespace="default")

    say("early", "dracaena-kubelet-plugin", "a", "2026-01-01T00:00:00Z", count=3)
    say("late", "dracaena-kubelet-plugin", "a", "2026-01-01T00:30:00Z")
    say("of-b", "dracaena-kubelet-plugin", "b", "2026-01-01T00:00:00Z")
    say("of-kubelet", "kubelet", "a", "2026-01-01T00:00:00Z")
    lines = [line.strip() for line in run("status", "a").out.splitlines() if "GpuUnhealthy" in line]
    assert lines == [
        "2026-01-01T00:30:00Z  GpuUnhealthy: gpu-0 of a on 2026-01-01T00:30:00Z",
        "2026-01-01T00:00:00Z  GpuUnhealthy (3 times): gpu-0 of a on 2026-01-01T00:00:00Z",
    ]
    assert "GpuUnhealthy" not in run("status").out
    (told,) = document(run("status", "b", "-o", "json"))["nodes"]
    assert [(one["reason"], one["count"], one["last"]) for one in told["events"]] == [
        ("GpuUnhealthy", 1, "2026-01-01T00:00:00Z")
    ]
    read = Transport.read

    def refused(self: Transport, path: str, **options: Any) -> bytes | None:
        if _right(path) == ("", "events", "list"):
            raise ForbiddenError(f"GET {path}", 403, "Forbidden", "events is forbidden")
        return read(self, path, **options)

    monkeypatch.setattr(Transport, "read", refused)
    assert "  its Events may not be read" in run("status", "a").out.splitlines()
    assert document(run("status", "a", "-o", "json"))["nodes"][0]["events"] is None


def test_a_cluster_without_devices_says_so(run: Run) -> None:
    answer = run("status", "--driver-name", "other.example.com")
    assert answer.code == 0
    assert answer.out == "no node publishes devices of other.example.com: does its kubelet plugin run there?\n"
