"""kubectl of each version against the embedded API server of that version. Where there is no kubectl these tests are
skipped, and say so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.demo.apiserver import ApiServer
from dracaena.demo.apiserver.version import RELEASES
from dracaena.demo.kube_controller_manager import KubeControllerManager
from dracaena.process.clock import SystemClock
from support.kube import client_for
from support.kubectl_programs import VERSIONS, Run, kubectl_of, kubectl_runner

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  resourceClaims: [{name: gpus, resourceClaimTemplateName: four}]
  containers:
  - {name: main, image: busybox, resources: {claims: [{name: gpus}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: mine}
spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: gpu.dracaena.dev, count: 2}}]}}
---
apiVersion: v1
kind: Node
metadata: {name: node-a}
"""

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: busybox, command: [sleep, "1"]}]}}}
"""

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "busybox:1"}]}
"""

READY = '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'

WATCHING = ("--watch", "--request-timeout=5s")
"""To the end of the time-out, which each request before the watch has to keep too, on a busy machine as well."""


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def program(version: str) -> Path:
    return kubectl_of(version)


@pytest.fixture
def server(program: Path, version: str) -> Iterator[ApiServer]:
    with ApiServer(version=version) as running:
        yield running


@pytest.fixture
def kubectl(program: Path, server: ApiServer, tmp_path: Path) -> Run:
    return kubectl_runner(program, server, tmp_path)


@pytest.fixture
def applied(kubectl: Run) -> Iterator[Run]:
    kubectl("create", "-f", "-", stdin=MANIFEST)
    yield kubectl
    kubectl("delete", "--ignore-not-found", "-f", "-", stdin=MANIFEST)


def test_apply_on_the_server_is_refused_by_name(kubectl: Run) -> None:
    refused = kubectl("apply", "--server-side", "-f", "-", stdin=JOB, code=1)
    assert "the embedded API server does not implement server-side apply" in refused.stderr
    assert kubectl("get", "jobs").stderr.startswith("No resources found")


def test_get_prints_names_json_and_yaml(applied: Run) -> None:
    assert applied("get", "pods", "-o", "name").stdout == "pod/web\n"
    assert json.loads(applied("get", "pod", "web", "-o", "json").stdout)["kind"] == "Pod"
    assert (
        yaml.safe_load(applied("get", "resourceclaims", "-o", "yaml").stdout)["items"][0]["metadata"]["name"] == "mine"
    )
    assert applied("get", "resourceslices").stderr.startswith("No resources found")


def rows(table: str) -> list[list[str]]:
    """The cells of a printed table: columns are three blanks apart."""
    return [re.split(r" {2,}", line.strip()) for line in table.splitlines()]


def test_get_prints_the_columns_of_each_kind(applied: Run) -> None:
    by_field = applied("get", "pods", "-l", "app=web", "--field-selector", "status.phase=Pending").stdout
    assert [row[:4] for row in rows(by_field)] == [
        ["NAME", "READY", "STATUS", "RESTARTS"],
        ["web", "0/1", "Pending", "0"],
    ]
    assert rows(applied("get", "pods", "-o", "wide").stdout)[0][5:] == [
        "IP",
        "NODE",
        "NOMINATED NODE",
        "READINESS GATES",
    ]
    assert rows(applied("get", "resourceclaims").stdout)[1][:2] == ["mine", "pending"]
    assert rows(applied("get", "nodes").stdout)[1][:3] == ["node-a", "Unknown", "<none>"]
    assert ["default", "Active"] in [row[:2] for row in rows(applied("get", "namespaces").stdout)]
    assert rows(applied("get", "pods", "-A").stdout)[1][:2] == ["default", "web"]
    assert rows(applied("get", "pod,resourceclaim").stdout)[1][0] == "pod/web"
    assert rows(applied("get", "pods", "--show-labels").stdout)[1][-1] == "app=web"
    assert applied("get", "pods", "--no-headers", "--sort-by=.metadata.name").stdout.startswith("web")


def test_a_watch_prints_a_row_for_each_change(applied: Run) -> None:
    seen = applied("get", "pods", *WATCHING).stdout
    assert [row[:3] for row in rows(seen)] == [["NAME", "READY", "STATUS"], ["web", "0/1", "Pending"]]


def test_a_selector_that_does_not_compile_is_refused_with_its_place(kubectl: Run) -> None:
    manifest = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: big}
spec: {selectors: [{cel: {expression: device.drivr == "x"}}]}
"""
    refused = kubectl("apply", "-f", "-", stdin=manifest, code=1).stderr
    assert "spec.selectors[0].cel.expression" in refused
    assert "undefined field 'drivr' (line 1, column 7)" in refused


def test_a_job_is_printed_waited_for_and_deleted_with_its_pod(server: ApiServer, kubectl: Run, tmp_path: Path) -> None:
    manager = KubeControllerManager(client_for(server.url, tmp_path), SystemClock())
    manager.start()
    try:
        kubectl("apply", "-f", "-", stdin=JOB)
        kubectl("wait", "--for=create", "pod", "-l", "job-name=once", "--timeout=30s")
        assert rows(kubectl("get", "jobs").stdout)[1][:3] == ["once", "Running", "0/1"]
        pod = kubectl("get", "pods", "-l", "job-name=once", "-o", "name").stdout.strip()
        kubectl("patch", pod, "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Succeeded"}}')
        kubectl("wait", "--for=condition=Complete", "job/once", "--timeout=30s")
        assert rows(kubectl("get", "jobs", "-o", "wide").stdout)[1][1:3] == ["Complete", "1/1"]
        assert "Completions:" in kubectl("describe", "job", "once").stdout
        kubectl("delete", "job", "once", "--timeout=30s")
        kubectl("wait", "--for=delete", pod, "--timeout=30s")
    finally:
        manager.stop()
    assert manager.failure is None


def test_a_deployment_is_rolled_out_scaled_undone_and_deleted(server: ApiServer, kubectl: Run, tmp_path: Path) -> None:
    manager = KubeControllerManager(client_for(server.url, tmp_path), SystemClock())
    manager.start()
    try:
        kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
        kubectl("wait", "--for=jsonpath={.status.replicas}=2", "deployment/web", "--timeout=30s")
        assert rows(kubectl("get", "deployments").stdout)[1][:4] == ["web", "0/2", "2", "0"]
        assert rows(kubectl("get", "replicasets", "-o", "wide").stdout)[1][1:4] == ["2", "2", "0"]
        for pod in kubectl("get", "pods", "-l", "app=web", "-o", "name").stdout.split():
            kubectl("patch", pod, "--subresource=status", "--type=merge", "-p", READY)
        assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web", "--timeout=30s").stdout
        kubectl("scale", "deployment", "web", "--replicas=1")
        kubectl("wait", "--for=jsonpath={.status.replicas}=1", "deployment/web", "--timeout=30s")
        kubectl("set", "image", "deployment/web", "main=busybox:2")
        kubectl("wait", "--for=jsonpath={.status.replicas}=2", "deployment/web", "--timeout=30s")  # one of surge
        history = kubectl("rollout", "history", "deployment/web").stdout
        assert [line.split()[0] for line in history.splitlines() if line[:1].isdigit()] == ["1", "2"]
        assert "rolled back" in kubectl("rollout", "undo", "deployment/web").stdout
        kubectl("rollout", "status", "deployment/web", "--timeout=30s")
        assert "busybox:1" in kubectl("get", "deployment", "web", "-o", "wide").stdout
        assert "NewReplicaSet:" in kubectl("describe", "deployment", "web").stdout
        kubectl("delete", "deployment", "web", "--timeout=30s")
        kubectl("wait", "--for=delete", "pods", "-l", "app=web", "--timeout=30s")
    finally:
        manager.stop()
    assert manager.failure is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("namespace", "desk"),
        ("job", "once", "--image=busybox:1", "--", "sleep", "5"),
        ("deployment", "web", "--image=a", "--image=b:2", "--replicas=3"),
        ("deployment", "ported", "--image=a", "--port=8080"),
    ],
)
def test_what_kubectl_makes_by_itself_is_stored_as_its_manifest_is(kubectl: Run, arguments: tuple[str, ...]) -> None:
    kind, name, *_ = arguments

    def stored() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(kubectl("get", kind, name, "-o", "json").stdout)
        text = json.dumps(document).replace(document["metadata"]["uid"], "UID")
        again: dict[str, Any] = json.loads(text)
        for part in ("resourceVersion", "creationTimestamp"):
            del again["metadata"][part]
        return again

    kubectl("create", *arguments)
    by_itself = stored()
    kubectl("delete", kind, name, "--wait=false", "--cascade=background")
    if kind == "namespace":  # it goes with a controller, which is not here
        assert by_itself["spec"] == {"finalizers": ["kubernetes"]}
        return
    command = [*arguments]
    at = command.index("--") if "--" in command else len(command)
    manifest = kubectl("create", *command[:at], "--dry-run=client", "-o", "json", *command[at:]).stdout
    kubectl("create", "-f", "-", stdin=manifest)
    assert stored() == by_itself


def test_a_manifest_with_its_namespace_is_deleted_whole(server: ApiServer, kubectl: Run, tmp_path: Path) -> None:
    manager = KubeControllerManager(client_for(server.url, tmp_path), SystemClock())
    manager.start()
    try:
        whole = "apiVersion: v1\nkind: Namespace\nmetadata: {name: desk}\n---\n" + MANIFEST.replace(
            "{name: mine}", "{name: mine, namespace: desk}"
        )
        kubectl("apply", "-f", "-", stdin=whole)
        # kubectl asks for each object by itself: one that went with its namespace meanwhile would be an error.
        kubectl("delete", "--ignore-not-found", "-f", "-", "--timeout=30s", stdin=whole)
        assert "NotFound" in kubectl("get", "namespace", "desk", code=1).stderr
        assert kubectl("get", "resourceclaims,pods", "-A").stderr.startswith("No resources found")
    finally:
        manager.stop()
    assert manager.failure is None


def test_describe_works_for_pod_node_and_claim(applied: Run) -> None:
    assert "Status:       Pending" in applied("describe", "pod", "web").stdout
    assert "node.kubernetes.io/not-ready:NoSchedule" in applied("describe", "node", "node-a").stdout
    assert "Device Class Name:  gpu.dracaena.dev" in applied("describe", "resourceclaim", "mine").stdout


def test_label_annotate_patch_taint_and_cordon_work(applied: Run) -> None:
    applied("label", "pod", "web", "tier=front")
    applied("annotate", "resourceclaim", "mine", "a=b")
    applied("patch", "pod", "web", "-p", '{"metadata":{"labels":{"more":"yes"}}}')
    applied("taint", "node", "node-a", "k=v:NoSchedule")
    applied("cordon", "node-a")
    labels = json.loads(applied("get", "pod", "web", "-o", "json").stdout)["metadata"]["labels"]
    assert labels == {"app": "web", "tier": "front", "more": "yes"}
    assert json.loads(applied("get", "node", "node-a", "-o", "json").stdout)["spec"]["unschedulable"] is True


def test_wait_and_watch_see_the_state(applied: Run) -> None:
    applied("wait", "--for=jsonpath={.status.phase}=Pending", "pod/web", "--timeout=10s")
    seen = applied("get", "pod", "web", "-o", "name", *WATCHING, code=0)
    assert seen.stdout.splitlines()[0] == "pod/web"


def test_create_delete_and_client_side_apply_work(kubectl: Run) -> None:
    kubectl("apply", "-f", "-", stdin=MANIFEST)
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=MANIFEST).stdout
    assert 'pod "web" deleted' in kubectl("delete", "pod", "web", "--timeout=20s").stdout
    kubectl("delete", "--ignore-not-found", "-f", "-", stdin=MANIFEST)
    kubectl("create", "-f", "-", stdin=MANIFEST)
    assert "AlreadyExists" in kubectl("create", "-f", "-", stdin=MANIFEST, code=1).stderr
    kubectl("delete", "-f", "-", stdin=MANIFEST)


def test_a_misspelt_field_is_refused(kubectl: Run) -> None:
    wrong = MANIFEST.replace("resourceClaims:", "resourceClaimz:", 1)
    failed = kubectl("create", "-f", "-", stdin=wrong, code=1)
    assert 'unknown field "spec.resourceClaimz"' in failed.stderr


def test_what_is_not_served_is_refused_by_name(applied: Run) -> None:
    assert "does not implement the sub-resource pods/log" in applied("logs", "web", code=1).stderr
    assert "doesn't have a resource type" in applied("get", "daemonsets", code=1).stderr
    assert (
        "spec.volumes"
        in applied("patch", "pod", "web", "-p", '{"spec":{"volumes":[{"name":"v","emptyDir":{}}]}}', code=1).stderr
    )


@pytest.mark.parametrize("command", ["apply", "create"])
def test_a_manifest_of_a_kind_that_is_not_served_is_refused_by_its_name(kubectl: Run, command: str) -> None:
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
    refused = kubectl(command, "-f", "-", stdin=manifest, code=1).stderr
    assert 'no matches for kind "ConfigMap" in version "v1"' in refused


def test_resources_and_version_are_discovered(kubectl: Run, version: str) -> None:
    listed = kubectl("api-resources", "--no-headers", "-o", "name").stdout.split()
    assert "resourceclaims.resource.k8s.io" in listed
    assert RELEASES[version] in kubectl("version").stdout


def test_our_command_is_a_plugin_of_kubectl(program: Path, server: ApiServer, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(yaml.safe_dump(server.kubeconfig()))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(config)}
    done = subprocess.run(
        [str(program), "dracaena", "status"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("no node publishes devices of gpu.dracaena.dev")
