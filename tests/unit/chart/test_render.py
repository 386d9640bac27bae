"""What helm makes of the chart."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import yaml

from support.chart import CHART, KUBERNETES, NAMESPACE, helm, needs_helm, objects, render
from support.gpu_lists import entry

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).parent / "golden"
RECORD = "DRACAENA_CHART_RECORD"
"""Environment variable: write the golden files anew."""

E2E_RIGHTS = ROOT / "tests" / "e2e" / "manifests" / "rbac.yaml"

pytestmark = needs_helm


def test_chart_passes_strict_lint(tmp_path: Path) -> None:
    done = helm("lint", "--strict", KUBERNETES, CHART, home=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("name", ["default", "everything"])
def test_render_is_the_golden_one(tmp_path: Path, name: str) -> None:
    values = GOLDEN / f"{name}.values.yaml"
    rendered = without_files(render(tmp_path, "--values", values))
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get(RECORD):
        golden.write_text(rendered, encoding="utf-8")
    assert rendered == golden.read_text(encoding="utf-8"), f"look at the difference; {RECORD}=1 takes it"


def without_files(rendered: str) -> str:
    """Return it with the name of a dashboard's file in place of its thousand lines, which have tests of their own."""
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        text = path.read_text(encoding="utf-8").strip()
        rendered = rendered.replace(indent(text, "    "), f"    (files/dashboards/{path.name})")
    return rendered


def test_each_dashboard_is_rendered_as_its_file_has_it(tmp_path: Path) -> None:
    maps = objects(render(tmp_path, "--values", GOLDEN / "everything.values.yaml"), "ConfigMap")
    data = {name: text for each in maps for name, text in each.get("data", {}).items()}
    files = sorted((CHART / "files" / "dashboards").glob("*.json"))
    assert len(files) == 4
    for path in files:
        assert json.loads(data[f"dracaena-{path.name}"]) == json.loads(path.read_text(encoding="utf-8"))


def test_notes_name_the_classes_that_there_are(tmp_path: Path) -> None:
    notes = notes_of(tmp_path)
    assert "nvlink.gpu.dracaena.dev" in notes
    assert "share.gpu.dracaena.dev" not in notes
    assert "DRADeviceTaints" in notes
    shared = json.dumps([entry("shared")])
    assert "share.gpu.dracaena.dev" in notes_of(tmp_path, f"kubeletPlugin.nodeSettings.some.gpus={shared}")
    assert "nvlink.gpu.dracaena.dev" not in notes_of(tmp_path, "deviceClasses.enabled=false")


def notes_of(home: Path, *settings: str) -> str:
    arguments = [argument for each in settings for argument in ("--set-json", each)]
    done = helm("install", "dracaena", CHART, "--dry-run=client", *arguments, home=home)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


def test_notes_say_what_the_rewrite_label_does_to_quotas(tmp_path: Path) -> None:
    notes = notes_of(tmp_path)
    assert "A ResourceQuota on requests.nvidia.com/gpu no longer counts them: one on the class does." in notes
    assert "They may name any DeviceClass in an annotation, past a quota on one class" in notes
    counted = notes_of(tmp_path, 'deviceClasses.extendedResourceName="nvidia.com/gpu"', 'rewrite.podClasses=["nvlink"]')
    assert "counts them by their class." in counted
    assert "They may name the classes in rewrite.podClasses" in counted
    assert "ResourceQuota" not in notes_of(tmp_path, "rewrite.resourceNames=[]")


def test_notes_say_that_the_page_is_served_without_tls(tmp_path: Path) -> None:
    assert "plain HTTP" not in notes_of(tmp_path, "controller.page.enabled=false")
    assert "The page is served over plain HTTP" in notes_of(tmp_path)
    assert "plain HTTP" not in notes_of(tmp_path, 'webConfig.secretName="web"')


def test_notes_name_no_label_that_the_plugin_does_not_ask_for(tmp_path: Path) -> None:
    done = helm(
        "install", "dracaena", CHART, "--dry-run=client", "--set", "kubeletPlugin.affinity=null", home=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "nvidia.com/gpu.present" not in notes
    assert "The node needs the labels in kubeletPlugin.nodeSelector" in notes


OFF_BY_DEFAULT = ("share", "vfio", "vgpu", "confidential", "confidential-vfio")
"""How the names begin of classes that only some nodes need."""

EVERY = (
    f"--set-json=kubeletPlugin.settings.gpus={json.dumps([entry('shared'), entry('vgpu')])}",
    f"--set-json=kubeletPlugin.nodeSettings.machines.gpus={json.dumps([entry('passthrough')])}",
    "--set=deviceClasses.confidential=true",
)
"""What all classes are for."""


def test_device_classes_are_those_of_the_folder(tmp_path: Path) -> None:
    every = render(tmp_path, *EVERY)
    rendered = {one["metadata"]["name"]: one["spec"] for one in objects(every, "DeviceClass")}
    files = [yaml.safe_load(path.read_text()) for path in (ROOT / "deploy" / "deviceclasses").glob("*.yaml")]
    assert rendered == {one["metadata"]["name"]: one["spec"] for one in files}


def test_a_cluster_that_shares_no_gpus_and_has_no_virtual_machines_has_no_classes_for_them(tmp_path: Path) -> None:
    names = {one["metadata"]["name"] for one in objects(render(tmp_path), "DeviceClass")}
    assert not names & {f"{name}.gpu.dracaena.dev" for name in OFF_BY_DEFAULT}


def test_pods_come_to_the_gate_in_the_namespaces_that_the_value_says(tmp_path: Path) -> None:
    def selector(value: str) -> Any:
        policies = objects(render(tmp_path, "--set", f"schedulingGate={value}"), "MutatingAdmissionPolicyBinding")
        gates = [one for one in policies if one["spec"]["policyName"] == "gate.gpu.dracaena.dev"]
        return [one["spec"]["matchResources"]["namespaceSelector"] for one in gates]

    assert selector("Off") == []
    assert selector("Labelled") == [{"matchLabels": {"gpu.dracaena.dev/gate": "true"}}]
    system = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
    out = {"key": "gpu.dracaena.dev/gate", "operator": "NotIn", "values": ["false"]}
    assert selector("All") == [{"matchExpressions": [system, out]}]


def test_what_the_controller_may_do_at_the_gate_is_confined_also_where_no_new_pod_comes_to_it(tmp_path: Path) -> None:
    """Pods that came to it before still pass."""
    off = render(tmp_path, "--set", "schedulingGate=Off")
    assert "gates.gpu.dracaena.dev" in {one["metadata"]["name"] for one in objects(off, "ValidatingAdmissionPolicy")}


def test_all_classes_of_whole_gpus_stand_for_the_extended_resource_or_none(tmp_path: Path) -> None:
    """A class without the name would be a way around a quota by that name. Confidential GPUs are not to be had by it:
    kube-scheduler takes the newest class of a name, and of those the first, for every pod."""
    values = (*EVERY, "--set", "deviceClasses.extendedResourceName=nvidia.com/gpu")
    classes = objects(render(tmp_path, *values), "DeviceClass")
    named = {one["metadata"]["name"]: one["spec"].get("extendedResourceName") for one in classes}
    of_others = {f"{kind}.gpu.dracaena.dev": None for kind in ("mig", *OFF_BY_DEFAULT)}
    whole = ("gpu.dracaena.dev", "nvlink.gpu.dracaena.dev", "pcie-switch.gpu.dracaena.dev")
    assert named == {**of_others, **dict.fromkeys(whole, "nvidia.com/gpu")}
    by_default = objects(render(tmp_path), "DeviceClass")
    assert not [one for one in by_default if "extendedResourceName" in one["spec"]]


def test_values_that_may_be_taken_away_leave_nothing_half_said(tmp_path: Path) -> None:
    """`null` takes a key away, on the command line and in a file."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    taken = list(optional(values, schema))
    assert "kubeletPlugin.affinity" in taken
    rendered = render(tmp_path, *(f"--set={path}=null" for path in taken))
    assert "null" not in rendered
    assert "<no value>" not in rendered
    assert {one["kind"] for one in yaml.safe_load_all(rendered) if one} >= {"Deployment", "DaemonSet"}


def optional(values: Any, schema: Any, path: str = "") -> Iterator[str]:
    """Yield the values that need not be there; of a map that must be, those in it."""
    for key, value in values.items():
        below = schema["properties"][key]
        if key not in schema.get("required", ()) and not (isinstance(value, dict) and "required" in below):
            yield f"{path}{key}"
        elif isinstance(value, dict) and "properties" in below:
            yield from optional(value, below, f"{path}{key}.")


@pytest.mark.parametrize("part", ["image", "controller", "kubeletPlugin.hostPaths.kubelet", "driverName"])
def test_value_that_templates_need_is_missed_by_name(tmp_path: Path, part: str) -> None:
    done = helm("template", "dracaena", CHART, KUBERNETES, f"--set={part}=null", home=tmp_path)
    assert done.returncode != 0
    assert f"missing property '{part.rpartition('.')[2]}'" in done.stderr


def test_egress_rules_hold_for_all_pods_of_the_release(tmp_path: Path) -> None:
    rule = {"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]}
    rendered = render(tmp_path, f"--set-json=networkPolicy.egress={json.dumps([rule])}")
    (policy,) = (one for one in objects(rendered, "NetworkPolicy") if "Egress" in one["spec"]["policyTypes"])
    assert policy["spec"]["egress"] == [rule]
    makers = [one for kind in ("Deployment", "DaemonSet", "Job") for one in objects(rendered, kind)]
    assert len(makers) == 4
    for maker in makers:
        labels = maker["spec"]["template"]["metadata"]["labels"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_name_with_a_quote_stays_inside_its_expression(tmp_path: Path) -> None:
    rendered = render(tmp_path, "--set", "controller.settings.allowed-drivers=nic'example")
    (policy,) = (
        one
        for one in objects(rendered, "ValidatingAdmissionPolicy")
        if one["metadata"]["name"].startswith("allocations.")
    )
    drivers = {variable["name"]: variable["expression"] for variable in policy["spec"]["variables"]}["drivers"]
    assert json.loads(drivers) == ["gpu.dracaena.dev", "nic'example"]


@pytest.mark.parametrize("is_wanted", [True, False])
def test_chart_stands_in_another_one_with_a_condition(tmp_path: Path, is_wanted: bool) -> None:
    parent = tmp_path / "parent"
    shutil.copytree(CHART, parent / "charts" / "dracaena")
    dependency = {"name": "dracaena", "version": "0.1.0", "condition": "dracaena.enabled"}
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [dependency]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart), encoding="utf-8")
    done = helm("template", "p", parent, KUBERNETES, f"--set=dracaena.enabled={str(is_wanted).lower()}", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(objects(done.stdout, "DaemonSet")) == is_wanted


@pytest.mark.parametrize("part", ["Deployment", "DaemonSet"])
def test_environment_holds_nothing_but_settings(tmp_path: Path, part: str) -> None:
    """A Service named dracaena-… of the namespace would come in as DRACAENA_…, beside the settings of that prefix."""
    (maker,) = objects(render(tmp_path), part)
    assert maker["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_names_follow_the_driver(tmp_path: Path) -> None:
    """So that two releases for two drivers share nothing, and two for one driver collide in helm."""
    other = render(tmp_path, "--set", "driverName=second.example.com")
    for kind in ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "DeviceClass"):
        names = {one["metadata"]["name"] for one in objects(other, kind)}
        assert names
        assert all(name.endswith("second.example.com") for name in names)
    assert "gpu.dracaena.dev" not in other.replace("gpu.dracaena.dev/v1alpha1", "")


def test_rights_of_the_process_tests_are_those_of_the_chart(tmp_path: Path) -> None:
    """Those programs have no token that is bound to a node, so the plugin's rights are the wider ones there."""

    def rights(documents: list[Any]) -> set[tuple[str, ...]]:
        return {
            (document["metadata"]["name"].partition(".")[0].removeprefix("dracaena-"), group, resource, verb)
            for document in documents
            for rule in document["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    text = render(tmp_path, "--set=kubeletPlugin.readAsNode=false,controller.page.enabled=false")
    roles = [*objects(text, "ClusterRole"), *objects(text, "Role")]
    # Those of a hook of `helm uninstall` are no program's.
    chart = rights([one for one in roles if one["metadata"]["labels"]["app.kubernetes.io/component"] != "uninstall"])
    wider = {tuple(part.replace("associated-node:", "arbitrary-node:") for part in right) for right in chart}
    assert rights(objects(E2E_RIGHTS.read_text(encoding="utf-8"), "ClusterRole")) == wider


def test_plugin_may_list_no_pods_but_as_its_node(tmp_path: Path) -> None:
    (role,) = (one for one in objects(render(tmp_path), "ClusterRole") if "plugin" in one["metadata"]["name"])
    verbs = {verb for rule in role["rules"] for verb in rule["verbs"] if {"pods", "nodes"} & {*rule["resources"]}}
    assert {verb for verb in verbs if not verb.startswith("impersonate")} == {"patch"}
    assert "impersonate" not in verbs


def test_nobody_but_kubelet_reaches_the_metrics_where_no_peer_is_named(tmp_path: Path) -> None:
    policies = objects(render(tmp_path, "--set-json=networkPolicy.from=[]"), "NetworkPolicy")
    assert len(policies) == 2
    for policy in policies:
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert policy["spec"]["ingress"] == []


def test_older_kubernetes_is_refused(tmp_path: Path) -> None:
    done = helm("template", "dracaena", CHART, "--kube-version=1.35.4", home=tmp_path)
    assert done.returncode != 0
    assert ">=1.36.0-0" in done.stderr
    assert "1.35.4" in done.stderr


OLD_SERVER = {
    "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.4"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
}


@pytest.fixture
def old_server() -> Iterator[tuple[str, list[str]]]:
    """Give the address of something that answers like Kubernetes 1.35, and the writes that it got."""
    writes: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = OLD_SERVER.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            self._answer(200 if document else 404, json.dumps(document or missing).encode())

        def do_POST(self) -> None:
            writes.append(self.path)
            self._answer(500, b"{}")

        do_PUT = do_PATCH = do_DELETE = do_POST  # noqa: N815 - names of the base class

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", writes
    server.shutdown()
    thread.join()
    server.server_close()


def test_nothing_is_installed_on_an_older_server(tmp_path: Path, old_server: tuple[str, list[str]]) -> None:
    url, writes = old_server
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "old", "cluster": {"server": url}}],
        "contexts": [{"name": "old", "context": {"cluster": "old", "user": ""}}],
        "current-context": "old",
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    done = helm("install", "dracaena", CHART, "--namespace", NAMESPACE, home=tmp_path, kubeconfig=kubeconfig)
    assert done.returncode != 0
    assert ">=1.36.0-0" in done.stderr
    assert "v1.35.4" in done.stderr
    assert writes == []


def test_metrics_are_scraped_where_the_cluster_knows_the_kind_for_it(tmp_path: Path) -> None:
    known = "--api-versions=monitoring.coreos.com/v1/PodMonitor"

    def monitors(*arguments: str) -> int:
        return len(objects(render(tmp_path, *arguments), "PodMonitor"))

    assert (monitors(), monitors(known)) == (0, 1)
    switch = "--set=monitoring.podMonitor.enabled"
    assert (monitors(f"{switch}=true"), monitors(known, f"{switch}=false")) == (1, 0)


def test_a_scrape_keeps_the_labels_that_programs_serve_so_that_a_quota_is_that_of_its_team(tmp_path: Path) -> None:
    switches = ("--set=monitoring.podMonitor.enabled=true", "--set=exporter.enabled=true")
    monitors = objects(render(tmp_path, *switches), "PodMonitor")
    assert len(monitors) == 2
    assert all(endpoint["honorLabels"] for each in monitors for endpoint in each["spec"]["podMetricsEndpoints"])


@pytest.mark.parametrize("url", ["https://wiki.example.com/gpus", "https://wiki.example.com/gpus/"])
def test_the_runbook_of_each_alert_is_where_the_values_say(tmp_path: Path, url: str) -> None:
    switches = ("--set=monitoring.alerts.enabled=true", f"--set=monitoring.alerts.runbookUrl={url}")
    (rules,) = objects(render(tmp_path, *switches), "PrometheusRule")
    found = [rule["annotations"]["runbook_url"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert len(found) > 20
    assert all(re.fullmatch(r"https://wiki\.example\.com/gpus/\w+/#dracaena\w+", each) for each in found)
