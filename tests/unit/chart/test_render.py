"""What helm makes of the chart. Needs helm: DRACAENA_HELM, PATH, or what `make e2e` has built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.cli.main import build_parser
from e2e import binaries

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "dracaena"
GOLDEN = Path(__file__).parent / "golden"
RECORD = "DRACAENA_CHART_RECORD"
"""Environment variable: write the golden files anew."""

KUBERNETES = "--kube-version=1.36.3"
NAMESPACE = "gpu-system"
E2E_RIGHTS = ROOT / "tests" / "e2e" / "manifests" / "rbac.yaml"


def helm_program() -> str | None:
    built = binaries.helm(binaries.cache_root(os.environ))
    return os.environ.get("DRACAENA_HELM") or shutil.which("helm") or (str(built) if built.exists() else None)


HELM = helm_program()

pytestmark = pytest.mark.skipif(
    HELM is None, reason="no helm: not on PATH, not named by DRACAENA_HELM, not built (make e2e E2E=--build-only)"
)


def helm(*arguments: str | Path, home: Path, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "KUBECONFIG": str(kubeconfig or home / "none")}
    return subprocess.run(
        [str(HELM), *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
    )


def render(home: Path, *arguments: str | Path) -> str:
    done = helm("template", "dracaena", CHART, "--namespace", NAMESPACE, KUBERNETES, *arguments, home=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str, kind: str) -> list[Any]:
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document and document["kind"] == kind]


def test_chart_passes_strict_lint(tmp_path: Path) -> None:
    done = helm("lint", "--strict", KUBERNETES, CHART, home=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("name", ["default", "everything"])
def test_render_is_the_golden_one(tmp_path: Path, name: str) -> None:
    values = GOLDEN / f"{name}.values.yaml"
    rendered = render(tmp_path, "--values", values)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get(RECORD):
        golden.write_text(rendered, encoding="utf-8")
    assert rendered == golden.read_text(encoding="utf-8"), f"look at the difference; {RECORD}=1 takes it"


def test_notes_name_the_classes_that_there_are(tmp_path: Path) -> None:
    done = helm(
        "install", "dracaena", CHART, "--dry-run=client", "--set", "deviceClasses.pcieSwitch=false",
        home=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "nvlink.gpu.dracaena.dev" in notes
    assert "pcie-switch" not in notes
    assert "DRADeviceTaints" in notes


def test_notes_name_no_label_that_the_plugin_does_not_ask_for(tmp_path: Path) -> None:
    done = helm(
        "install", "dracaena", CHART, "--dry-run=client", "--set", "kubeletPlugin.affinity=null", home=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "nvidia.com/gpu.present" not in notes
    assert "The node needs the labels in kubeletPlugin.nodeSelector" in notes


OFF_BY_DEFAULT = {
    "share": "share",
    "vfio": "vfio",
    "vgpu": "vgpu",
    "confidential": "confidential",
    "confidentialVfio": "confidential-vfio",
}
"""Classes with a switch of their own: the switch and how the name of its class begins."""


def test_device_classes_are_those_of_the_folder(tmp_path: Path) -> None:
    every = render(tmp_path, *(word for name in OFF_BY_DEFAULT for word in ("--set", f"deviceClasses.{name}=true")))
    rendered = {one["metadata"]["name"]: one["spec"] for one in objects(every, "DeviceClass")}
    files = [yaml.safe_load(path.read_text()) for path in (ROOT / "deploy" / "deviceclasses").glob("*.yaml")]
    assert rendered == {one["metadata"]["name"]: one["spec"] for one in files}


def test_a_cluster_that_shares_no_gpus_and_has_no_virtual_machines_has_no_classes_for_them(tmp_path: Path) -> None:
    names = {one["metadata"]["name"] for one in objects(render(tmp_path), "DeviceClass")}
    assert not names & {f"{name}.gpu.dracaena.dev" for name in OFF_BY_DEFAULT.values()}


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
    switches = [word for name in OFF_BY_DEFAULT for word in ("--set", f"deviceClasses.{name}=true")]
    values = (*switches, "--set", "deviceClasses.extendedResourceName=nvidia.com/gpu")
    classes = objects(render(tmp_path, *values), "DeviceClass")
    named = {one["metadata"]["name"]: one["spec"].get("extendedResourceName") for one in classes}
    of_others = {f"{kind}.gpu.dracaena.dev": None for kind in ("mig", *OFF_BY_DEFAULT.values())}
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

    text = render(tmp_path, "--set=kubeletPlugin.readAsNode=false")
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


def node_terms(rendered: str, part: str) -> list[Any]:
    (made,) = (one for one in objects(rendered, "DaemonSet") if one["metadata"]["name"].endswith(f"-{part}"))
    affinity = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [sorted(rule["key"] for rule in term["matchExpressions"]) for term in terms]


@pytest.mark.parametrize(("part", "value"), [("exporter", "exporter"), ("node-labels", "nodeLabels")])
def test_what_opens_the_driver_stays_off_nodes_where_it_is_let_go_of(tmp_path: Path, part: str, value: str) -> None:
    """Terms are alternatives: each has to say so."""
    paused = {f"nvidia.com/gpu.deploy.{part}" for part in ("device-plugin", "dcgm-exporter", "gpu-feature-discovery")}
    rules, enabled = {"gpu.dracaena.dev/release-driver", *paused}, f"--set={value}.enabled=true"
    with_affinity = node_terms(render(tmp_path, enabled), part)
    assert len(with_affinity) == 5
    assert all(rules < set(keys) for keys in with_affinity)
    assert node_terms(render(tmp_path, enabled, "--set=kubeletPlugin.affinity=null"), part) == [sorted(rules)]


def test_the_right_to_patch_nodes_comes_with_its_switch_its_account_and_its_policy(tmp_path: Path) -> None:
    """Other accounts get no right on Nodes by it, and without the policy nobody does."""

    def patchers(rendered: str) -> list[str]:
        return [
            role["metadata"]["name"]
            for role in objects(rendered, "ClusterRole")
            for rule in role["rules"]
            if {"nodes", "nodes/status"} & {*rule["resources"]} and "patch" in rule["verbs"]
        ]

    assert patchers(render(tmp_path)) == []
    rendered = render(tmp_path, "--set=nodeLabels.enabled=true")
    assert patchers(rendered) == ["node-labels.gpu.dracaena.dev"]
    (binding,) = (
        one for one in objects(rendered, "ClusterRoleBinding") if one["metadata"]["name"].startswith("node-labels")
    )
    (subject,) = binding["subjects"]
    assert subject["name"] == "dracaena-node-labels"
    policies = {one["metadata"]["name"]: one for one in objects(rendered, "ValidatingAdmissionPolicy")}
    (condition,) = policies["node-labels.gpu.dracaena.dev"]["spec"]["matchConditions"]
    assert f'"system:serviceaccount:{NAMESPACE}:{subject["name"]}"' in condition["expression"]
    bound = [one["spec"] for one in objects(rendered, "ValidatingAdmissionPolicyBinding")]
    (actions,) = (one["validationActions"] for one in bound if one["policyName"] == "node-labels.gpu.dracaena.dev")
    assert actions == ["Deny"]
    (pods,) = (one for one in objects(rendered, "DaemonSet") if one["metadata"]["name"] == subject["name"])
    assert pods["spec"]["template"]["spec"]["serviceAccountName"] == subject["name"]

    unguarded = ("--set=nodeLabels.enabled=true", "--set=admissionPolicies.enabled=false")
    done = helm("template", "dracaena", CHART, KUBERNETES, *unguarded, home=tmp_path)
    assert done.returncode != 0
    assert "only a policy confines the right to change Nodes to our labels" in done.stderr


def test_the_command_in_the_node_labels_pods_is_one_that_the_program_takes(tmp_path: Path) -> None:
    def arguments(*given: str) -> list[str]:
        rendered = render(tmp_path, "--set=nodeLabels.enabled=true", *given)
        (pods,) = (one for one in objects(rendered, "DaemonSet") if one["metadata"]["name"].endswith("node-labels"))
        (container,) = pods["spec"]["template"]["spec"]["containers"]
        return list(container["args"])

    parsed = build_parser().parse_args(arguments("--set=nodeLabels.migStrategy=mixed"))
    assert (parsed.nvml, parsed.interval, parsed.mig_strategy) == (True, 60, "mixed")
    assert (parsed.patch_node, parsed.kubelet_root) == ("$(NODE_NAME)", "/var/lib/kubelet")
    played = build_parser().parse_args(arguments("--set=kubeletPlugin.settings.machine=hgx-h100"))
    assert (played.nvml, played.machine) == (False, "hgx-h100")


@pytest.mark.parametrize("everywhere", [(), ("--set=kubeletPlugin.settings.machine=dgx-1v",)])
def test_node_labels_are_refused_where_only_some_nodes_play_a_machine(
    tmp_path: Path, everywhere: tuple[str, ...]
) -> None:
    """Their DaemonSet is one for all nodes: some would get labels of GPUs that their plugin does not publish."""
    values = ("--set=kubeletPlugin.nodeSettings.played.machine=hgx-h100", *everywhere)
    render(tmp_path, *values)
    done = helm("template", "dracaena", CHART, KUBERNETES, *values, "--set=nodeLabels.enabled=true", home=tmp_path)
    assert done.returncode != 0
    assert "kubeletPlugin.nodeSettings.played.machine is set and nodeLabels.enabled is true" in done.stderr
    assert "Say `machine` for all nodes in kubeletPlugin.settings" in done.stderr
    render(
        tmp_path, "--set=nodeLabels.enabled=true", "--set=kubeletPlugin.nodeSettings.divided.mig=onDemand", *everywhere
    )


LAYOUTS = "--set=kubeletPlugin.migLayouts=version: v1"
VGPU_LAYOUTS = "--set=kubeletPlugin.vgpuLayouts=version: v1"
MIG_SECTIONS = ["kubeletPlugin.settings.mig", "kubeletPlugin.nodeSettings.sliced.mig"]


@pytest.mark.parametrize("where", MIG_SECTIONS)
@pytest.mark.parametrize("mode", ["onDemand", "layout"])
def test_the_exporter_is_refused_beside_a_plugin_that_changes_mig_modes_which_it_stands_in_the_way_of(
    tmp_path: Path, where: str, mode: str
) -> None:
    exporter, changes = "--set=exporter.enabled=true", f"--set={where}={mode}"
    done = helm("template", "dracaena", CHART, KUBERNETES, exporter, changes, LAYOUTS, home=tmp_path)
    assert done.returncode != 0
    assert f"{where} is {mode} and exporter.enabled is true" in done.stderr
    for fine in ((exporter,), (changes, LAYOUTS), (exporter, f"--set={where}=existing")):
        render(tmp_path, *fine)


@pytest.mark.parametrize("where", MIG_SECTIONS)
def test_layouts_without_their_file_are_refused_because_the_plugin_would_not_start(tmp_path: Path, where: str) -> None:
    done = helm("template", "dracaena", CHART, KUBERNETES, f"--set={where}=layout", home=tmp_path)
    assert done.returncode != 0
    assert f"{where} is layout and kubeletPlugin.migLayouts is empty" in done.stderr


@pytest.mark.parametrize("section", ["settings", "nodeSettings.desktops"])
def test_vgpu_layouts_without_their_file_are_refused_too(tmp_path: Path, section: str) -> None:
    where = f"kubeletPlugin.{section}.vgpu"
    done = helm("template", "dracaena", CHART, KUBERNETES, f"--set={where}=layout", home=tmp_path)
    assert done.returncode != 0
    assert f"{where} is layout and kubeletPlugin.vgpuLayouts is empty" in done.stderr
    assert "vgpu-layouts" in render(tmp_path, f"--set={where}=layout", VGPU_LAYOUTS)


def test_the_plugin_sees_the_processes_of_its_node_exactly_where_it_takes_gpus_from_them(tmp_path: Path) -> None:
    def plugin(*given: str) -> Any:
        (found,) = (
            each
            for each in objects(render(tmp_path, *given), "DaemonSet")
            if "kubelet-plugin" in each["metadata"]["name"]
        )
        return found["spec"]["template"]["spec"]

    assert plugin(LAYOUTS)["hostPID"] is True
    assert plugin(VGPU_LAYOUTS)["hostPID"] is True
    assert "hostPID" not in plugin()
    assert "hostPID" not in plugin("--set=kubeletPlugin.settings.mig=onDemand")
    for where in ("settings", "nodeSettings.machines"):
        assert plugin(f"--set=kubeletPlugin.{where}.passthrough=onDemand")["hostPID"] is True
        assert "hostPID" not in plugin(f"--set=kubeletPlugin.{where}.passthrough=existing")


def test_the_program_that_a_setting_names_is_mounted_with_its_folder_at_the_same_path(tmp_path: Path) -> None:
    program = "/opt/gpu-admin-tools/nvidia_gpu_tools.py"
    sections = ("settings", "nodeSettings.machines", "nodeSettings.others")
    given = [f"--set=kubeletPlugin.{where}.cc-mode-tool={program}" for where in sections]
    (spec,) = (
        each["spec"]["template"]["spec"]
        for each in objects(render(tmp_path, *given), "DaemonSet")
        if "kubelet-plugin" in each["metadata"]["name"]
    )
    assert spec["hostPID"] is True
    (volume,) = (each for each in spec["volumes"] if each["name"].startswith("cc-mode-tool"))
    assert volume["hostPath"] == {"path": "/opt/gpu-admin-tools", "type": "DirectoryOrCreate"}
    (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"])
    assert mount == {"name": volume["name"], "mountPath": "/opt/gpu-admin-tools", "readOnly": True}
    at_the_root = "--set=kubeletPlugin.settings.cc-mode-tool=/nvidia_gpu_tools.py"
    done = helm("template", "dracaena", CHART, KUBERNETES, at_the_root, home=tmp_path)
    assert done.returncode != 0
    assert "its folder is mounted, and cannot be the root" in done.stderr


def test_only_who_asks_for_it_gets_the_right_to_write_a_condition_of_nodes(tmp_path: Path) -> None:
    asked, plain = "--set=kubeletPlugin.migLayoutCondition=true", "--set=kubeletPlugin.readAsNode=false"

    def verbs(*given: str) -> tuple[list[str], bool]:
        """Of nodes/status, and whether a policy holds it to them."""
        rendered = render(tmp_path, *given)
        roles, policies = objects(rendered, "ClusterRole"), objects(rendered, "ValidatingAdmissionPolicy")
        (role,) = (each for each in roles if each["metadata"]["name"].startswith("kubelet-plugin"))
        found = [verb for rule in role["rules"] if rule["resources"] == ["nodes/status"] for verb in rule["verbs"]]
        return found, any(each["metadata"]["name"].startswith("own-condition.") for each in policies)

    assert verbs() == ([], False)
    assert verbs(asked) == (["patch"], True)
    assert verbs(asked, plain) == (["patch"], True)
    assert verbs("--set=kubeletPlugin.vgpuLayoutCondition=true") == (["patch"], True)
    off = "--set=admissionPolicies.enabled=false"
    done = helm("template", "dracaena", CHART, KUBERNETES, asked, off, home=tmp_path)
    assert done.returncode != 0
    assert "kubeletPlugin.migLayoutCondition is true and admissionPolicies.enabled is false" in done.stderr


def reviews_of(rendered: str) -> list[Any]:
    roles = (one for one in objects(rendered, "ClusterRole") if one["metadata"]["name"].startswith("controller."))
    rules = (rule for role in roles for rule in role["rules"])
    return [rule for rule in rules if {"tokenreviews", "subjectaccessreviews"} & set(rule["resources"])]


def test_the_page_brings_its_port_service_and_rights_and_is_off_by_default(tmp_path: Path) -> None:
    off, on = render(tmp_path), render(tmp_path, "--set=controller.page.enabled=true,controller.page.port=9000")
    assert reviews_of(off) == []
    assert [rule["verbs"] for rule in reviews_of(on)] == [["create"], ["create"]]
    assert "PAGE_ADDRESS" not in off
    (deployment,) = objects(on, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "DRACAENA_PAGE_ADDRESS", "value": "$(POD_IP):9000"} in container["env"]
    assert {"name": "page", "containerPort": 9000} in container["ports"]
    (service,) = (one for one in objects(on, "Service") if one["metadata"]["name"].endswith("-page"))
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["sessionAffinity"] == "ClientIP"
    assert not [one for one in objects(off, "Service") if one["metadata"]["name"].endswith("-page")]


def test_the_page_is_reached_by_those_whom_its_value_names_and_by_nobody_else(tmp_path: Path) -> None:
    peer = {"podSelector": {"matchLabels": {"app": "ingress"}}}
    peers = f"--set-json=controller.page.from={json.dumps([peer])}"
    on = "--set=controller.page.enabled=true"
    for arguments, wanted in (([on], []), ([on, peers], [[peer]]), ([peers], [])):
        rendered = render(tmp_path, *arguments)
        rules = [
            rule
            for policy in objects(rendered, "NetworkPolicy")
            for rule in policy["spec"].get("ingress", ())
            if rule["ports"][0]["port"] == 8082
        ]
        assert [rule["from"] for rule in rules] == wanted


def test_the_page_asks_the_exporters_of_the_release_and_gets_through_to_them(tmp_path: Path) -> None:
    on = "--set=controller.page.enabled=true,exporter.enabled=true,exporter.port=9401"
    without, asks = render(tmp_path, on), render(tmp_path, f"{on},controller.page.exporters=true")
    assert "PAGE_EXPORTERS" not in without
    (deployment,) = objects(asks, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = {each["name"]: each.get("value") for each in container["env"]}
    namespace, _, selector = str(settings["DRACAENA_PAGE_EXPORTERS"]).partition("/")
    assert namespace == deployment["metadata"]["namespace"]
    (exporter,) = (one for one in objects(asks, "DaemonSet") if one["metadata"]["name"].endswith("exporter"))
    pod_labels = exporter["spec"]["template"]["metadata"]["labels"]
    assert dict(term.split("=") for term in selector.split(",")).items() <= pod_labels.items()
    assert settings["DRACAENA_PAGE_EXPORTERS_PORT"] == "9401"
    let_in = [
        peer["podSelector"]["matchLabels"]
        for policy in objects(asks, "NetworkPolicy")
        for rule in policy["spec"].get("ingress", ())
        for peer in rule["from"]
        if rule["ports"][0]["port"] == 9401 and "podSelector" in peer
    ]
    assert [labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items() for labels in let_in] == [
        True
    ]
    assert "PAGE_EXPORTERS" not in render(tmp_path, "--set=controller.page.enabled=true,controller.page.exporters=true")
