"""What helm makes of the chart for what runs on nodes: the plugin, the exporter and the node labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dracaena.cli.main import build_parser
from support.chart import CHART, KUBERNETES, NAMESPACE, helm, needs_helm, objects, render
from support.gpu_lists import entry

pytestmark = needs_helm


def entries(where: str, role: str, **more: Any) -> str:
    """Return the argument that gives a section one entry of `gpus`."""
    return f"--set-json=kubeletPlugin.{where}.gpus={json.dumps([entry(role, **more)])}"


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
    render(tmp_path, "--set=nodeLabels.enabled=true", entries("nodeSettings.divided", "mig"), *everywhere)


LAYOUTS = "--set=kubeletPlugin.migLayouts=version: v1"
VGPU_LAYOUTS = "--set=kubeletPlugin.vgpuLayouts=version: v1"
MIG_FILE, VGPU_FILE = "/etc/dracaena-mig/layouts.yaml", "/etc/dracaena-vgpu/layouts.yaml"
SECTIONS = ["settings", "nodeSettings.sliced"]


@pytest.mark.parametrize("where", SECTIONS)
@pytest.mark.parametrize("mode", ["mig", "layout"])
def test_the_exporter_is_refused_beside_a_plugin_that_changes_mig_modes_which_it_stands_in_the_way_of(
    tmp_path: Path, where: str, mode: str
) -> None:
    exporter, changes = "--set=exporter.enabled=true", entries(where, mode)
    done = helm("template", "dracaena", CHART, KUBERNETES, exporter, changes, LAYOUTS, home=tmp_path)
    assert done.returncode != 0
    assert f"kubeletPlugin.{where}.gpus has `as: {mode}` and exporter.enabled is true" in done.stderr
    for fine in ((exporter,), (changes, LAYOUTS), (exporter, entries(where, "shared"))):
        render(tmp_path, *fine)


@pytest.mark.parametrize("where", SECTIONS)
def test_layouts_without_their_file_are_refused_because_the_plugin_would_not_start(tmp_path: Path, where: str) -> None:
    done = helm("template", "dracaena", CHART, KUBERNETES, entries(where, "layout", file=MIG_FILE), home=tmp_path)
    assert done.returncode != 0
    assert f"kubeletPlugin.{where}.gpus has `as: layout`, and kubeletPlugin.migLayouts is empty" in done.stderr


@pytest.mark.parametrize("section", ["settings", "nodeSettings.desktops"])
def test_vgpu_layouts_without_their_file_are_refused_too(tmp_path: Path, section: str) -> None:
    given = entries(section, "vgpu", file=VGPU_FILE)
    done = helm("template", "dracaena", CHART, KUBERNETES, given, home=tmp_path)
    assert done.returncode != 0
    assert f"kubeletPlugin.{section}.gpus has `as: vgpu` with a file, and kubeletPlugin.vgpuLay" in done.stderr
    assert "vgpu-layouts" in render(tmp_path, given, VGPU_LAYOUTS)


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
    assert "hostPID" not in plugin(entries("settings", "mig"))
    for where in ("settings", "nodeSettings.machines"):
        assert plugin(entries(where, "passthrough"))["hostPID"] is True
        assert "hostPID" not in plugin(entries(where, "passthrough", bind="existing"))


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
    asked, plain = entries("settings", "layout", file="/x", condition=True), "--set=kubeletPlugin.readAsNode=false"

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
    assert verbs(entries("nodeSettings.some", "vgpu", file="/x", condition=True)) == (["patch"], True)
    off = "--set=admissionPolicies.enabled=false"
    done = helm("template", "dracaena", CHART, KUBERNETES, asked, off, home=tmp_path)
    assert done.returncode != 0
    assert "kubeletPlugin.settings.gpus has `condition: true`, and admissionPolicies.enabled is false" in done.stderr


@pytest.mark.parametrize(
    ("root", "mounted", "seen"),
    [
        ("/", "/", "/driver-root"),
        ("/run/nvidia/driver", "/run/nvidia", "/driver-root/driver"),
        ("/run/nvidia/driver/", "/run/nvidia", "/driver-root/driver"),
        ("/nvidia", "/", "/driver-root/nvidia"),
    ],
)
def test_the_parent_of_a_driver_containers_folder_is_mounted_so_that_a_new_folder_is_seen(
    tmp_path: Path, root: str, mounted: str, seen: str
) -> None:
    parts = ("--set=exporter.enabled=true", "--set=nodeLabels.enabled=true", "--set=mps.enabled=true")
    rendered = render(tmp_path, *parts, "--set", f"kubeletPlugin.hostPaths.driverRoot={root}")
    pods = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in objects(rendered, "DaemonSet")}
    for spec in pods.values():
        (path,) = (volume["hostPath"]["path"] for volume in spec["volumes"] if volume["name"] == "driver-root")
        mounts = [mount for each in spec["containers"] for mount in each["volumeMounts"]]
        (mount,) = (each for each in mounts if each["name"] == "driver-root")
        assert (path, mount["mountPath"], mount["mountPropagation"]) == (mounted, "/driver-root", "HostToContainer")
        assert not any(each["mountPath"].startswith("/driver-root/") for each in mounts), "it would keep the old folder"
    arguments = [argument for spec in pods.values() for each in spec["containers"] for argument in each["args"]]
    assert arguments.count(f"--driver-root-mount={seen}") == 2, "the exporter's and the MPS supervisor's"
    assert f"--driver-root={seen}" in arguments
    settings = [text for one in objects(rendered, "ConfigMap") for text in one["data"].values()]
    assert any(f"driver-root-mount: {seen}\n" in text for text in settings)
