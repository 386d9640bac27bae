"""What the chart's admission policies refuse by themselves, where kube-apiserver's own rules do not.

On a kube-apiserver alone, with the chart's rights and policies, and without the feature gate
DRAResourceClaimGranularStatusAuthorization: what it refuses stands in tests/e2e/install/test_rights.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from e2e.api import Answer, Api
from e2e.api_server import BareApiServer
from e2e.install.chart_cluster import NAMESPACE, RELEASE
from e2e.install.impersonation import As, controller, plugin
from e2e.installation import DRIVER
from e2e.run import BINARIES, LOGS
from e2e.waiting import eventually
from support.chart import CHART, KUBERNETES, helm

GATE_OFF: Final = "--feature-gates=DRAResourceClaimGranularStatusAuthorization=false"

COLLECTIONS: Final = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
}
"""Kinds of the chart that are applied: those that say who may do what."""

VALUES: Final = {
    "rewrite": {
        "resourceNames": ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"],
        "podClasses": ["nvlink", "gold.example.com"],
    }
}

HERE, ELSEWHERE = "node-a", "node-b"
OTHER_DRIVER: Final = "net.example.com"
TEAM, PLAIN, SILVER = "team", "plain", "silver"
"""Namespaces: with the rewrite label, without it, and with it and a class."""
CLAIMS: Final = f"/apis/resource.k8s.io/v1/namespaces/{PLAIN}/resourceclaims"
OWN_CLAIMS: Final = f"own-claims.{DRIVER}"

ADMITTED_S: Final = 60.0
"""Policies and labels of namespaces take a moment to reach the API server's admission."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareApiServer]:
    root = tmp_path_factory.mktemp("policies")
    with BareApiServer(root, Path(os.environ[BINARIES]), Path(os.environ[LOGS]), GATE_OFF) as running:
        _fill(api_of(running), root)
        yield running


def api_of(server: BareApiServer) -> Api:
    return Api(server.url, server.authority, server.token)


def _fill(api: Api, root: Path) -> None:
    values = root / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES), encoding="utf-8")
    done = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, KUBERNETES, "--values", values, home=root)
    assert done.returncode == 0, done.stderr
    for document in yaml.load_all(done.stdout, yaml.CSafeLoader):
        if document and document["kind"] in COLLECTIONS:
            api.create(COLLECTIONS[document["kind"]], document)
    namespaces = {
        TEAM: {f"{DRIVER}/rewrite": "true", "resource.kubernetes.io/admin-access": "true"},
        PLAIN: {},
        SILVER: {f"{DRIVER}/rewrite": "true", f"{DRIVER}/class": "silver"},
    }
    for name, labels in namespaces.items():
        api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})


# what a plugin's token may write of a claim


def result(node: str, driver: str = DRIVER) -> dict[str, Any]:
    return {"request": "gpu", "driver": driver, "pool": node, "device": "gpu-0"}


def device(node: str, driver: str = DRIVER) -> dict[str, Any]:
    return {"driver": driver, "pool": node, "device": "gpu-0", "data": {"uuid": "GPU-0"}}


@pytest.fixture(scope="module")
def claims(server: BareApiServer) -> As:
    """Claims on two nodes and of two drivers, one free; returns the plugin of the first node."""
    api = api_of(server)
    for name, results in {
        "here": [result(HERE)],
        "elsewhere": [result(ELSEWHERE)],
        "of-other-driver": [result(HERE, OTHER_DRIVER)],
        "of-both": [result(HERE), result(HERE, OTHER_DRIVER)],
        "free": [],
    }.items():
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "any"}}]
        api.create(CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
        if results:
            api.patch(f"{CLAIMS}/{name}", {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}})
            status = {"allocation": {"devices": {"results": results}}, "devices": [device(HERE, OTHER_DRIVER)]}
            if name != "of-both":
                del status["devices"]
            api.patch(f"{CLAIMS}/{name}/status", {"status": status})
    return plugin(server, HERE)


MUST_NOT: Final = {
    "allocate": ("free", {"allocation": {"devices": {"results": [result(HERE)]}}}),
    "allocate devices of another driver": (
        "free",
        {"allocation": {"devices": {"results": [result(HERE, OTHER_DRIVER)]}}},
    ),
    "take an allocation back": ("elsewhere", {"allocation": None, "reservedFor": None}),
    "take back one on its own node": ("here", {"allocation": None}),
    "reserve": ("here", {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}),
    "write devices of another node": ("elsewhere", {"devices": [device(ELSEWHERE)]}),
    "write devices of another driver": ("of-other-driver", {"devices": [device(HERE, OTHER_DRIVER)]}),
    "drop devices of another driver": ("of-both", {"devices": [device(HERE)]}),
}
"""What a plugin must not do to a claim: its name, and the status that it writes."""


FIRST: Final = MUST_NOT["allocate"]


def written(who: As, claim: str, status: Any) -> Answer:
    return who.send("PATCH", f"{CLAIMS}/{claim}/status?dryRun=All", {"status": status})


def test_without_the_gate_the_policy_alone_keeps_a_plugin_from_allocations(server: BareApiServer, claims: As) -> None:
    api, binding = api_of(server), f"{COLLECTIONS['ValidatingAdmissionPolicyBinding']}/{OWN_CLAIMS}"
    bound = api.send("GET", binding).document
    eventually(lambda: not written(claims, *FIRST).is_good, "the policy counts", within_s=ADMITTED_S)
    answers = {what: written(claims, *call) for what, call in MUST_NOT.items()}
    wrong = {
        what: answer.message for what, answer in answers.items() if answer.is_good or OWN_CLAIMS not in answer.message
    }
    assert wrong == {}
    api.delete(binding)
    try:
        eventually(
            lambda: all(written(claims, *call).is_good for call in MUST_NOT.values()),
            "nothing else refuses: the gate is off",
            within_s=ADMITTED_S,
        )
    finally:
        again = {key: bound[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": OWN_CLAIMS}}
        api.create(COLLECTIONS["ValidatingAdmissionPolicyBinding"], again)


def test_a_plugin_writes_the_devices_of_its_own_node(claims: As) -> None:
    assert written(claims, "here", {"devices": [device(HERE)]}).is_good
    assert written(claims, "of-both", {"devices": [device(HERE, OTHER_DRIVER), device(HERE)]}).is_good


# what templates the controller may make


def template(name: str = f"gpus-2.{DRIVER}", **changes: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 2, **changes.pop("exactly", {})}
    exactly = {key: value for key, value in exactly.items() if value is not None}
    devices = {"requests": [{"name": "gpus", "exactly": exactly}], **changes.pop("devices", {})}
    labels = {"app.kubernetes.io/managed-by": "dracaena-controller"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"spec": {"devices": devices}, **changes}}


PARAMETERS: Final = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy"}
OF_ANOTHER_DRIVER: Final = {"opaque": {"driver": OTHER_DRIVER, "parameters": {"a": 1}}}
OF_OURS: Final = {"opaque": {"driver": DRIVER, "parameters": PARAMETERS}}
ONE_GROUP: Final = {"requests": ["gpus"], "matchAttribute": f"{DRIVER}/nvlinkGroup"}
ALTERNATIVE: Final = {"name": "a", "deviceClassName": DRIVER, "count": 2}
UNSAID: Final = {
    "all devices": template(f"gpus-0.{DRIVER}", exactly={"allocationMode": "All", "count": None}),
    "another count": template(f"gpus-1.{DRIVER}"),
    "a config of another driver": template(devices={"config": [OF_ANOTHER_DRIVER]}),
    "a config of ours": template(devices={"config": [OF_OURS]}),
    "a constraint": template(devices={"constraints": [ONE_GROUP]}),
    "admin access": template(exactly={"adminAccess": True}),
    "a toleration": template(exactly={"tolerations": [{"key": "sick", "operator": "Exists"}]}),
    "amounts": template(exactly={"capacity": {"requests": {"memory": "1Gi"}}}),
    "a selector": template(exactly={"selectors": [{"cel": {"expression": "true"}}]}),
    "annotations of the claims": template(metadata={"annotations": {f"{DRIVER}/decision": "{}"}}),
    "labels of the claims": template(metadata={"labels": {"kueue.x-k8s.io/queue-name": "q"}}),
    "two requests": template(
        devices={"requests": [{"name": one, "exactly": {"deviceClassName": DRIVER, "count": 2}} for one in ("a", "b")]}
    ),
    "alternatives": template(devices={"requests": [{"name": "gpus", "firstAvailable": [ALTERNATIVE]}]}),
}  # fmt: skip
"""Templates of which the name does not say all."""


def test_the_controller_makes_templates_whose_names_say_all_of_what_they_mean(server: BareApiServer) -> None:
    made, who = (
        f"/apis/resource.k8s.io/v1/namespaces/{TEAM}/resourceclaimtemplates?dryRun=All",
        controller(server, HERE),
    )
    eventually(lambda: who.send("POST", made, template()).is_good, "the namespace's label counts", within_s=ADMITTED_S)
    answers = {what: who.send("POST", made, body) for what, body in UNSAID.items()}
    assert {what for what, answer in answers.items() if answer.is_good} == set()
    unexpected = {
        what: answer.message for what, answer in answers.items() if f"templates.{DRIVER}" not in answer.message
    }
    assert unexpected == {}


# what classes pods come to without a claim of their own


def pod(gpus: str = "nvidia.com/gpu", **more: Any) -> dict[str, Any]:
    annotations = {f"{DRIVER}/class": more.pop("asks")} if "asks" in more else {}
    limits = {gpus: "2"} if gpus else {}
    containers = [{"name": "c", "image": "x", "resources": {"limits": limits}}]
    return {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": containers, **more}}


def naming(template_name: str) -> dict[str, Any]:
    return pod("", resourceClaims=[{"name": "g", "resourceClaimTemplateName": template_name}])


def created(server: BareApiServer, namespace: str, body: Any) -> Answer:
    return api_of(server).send("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)


ALLOWED: Final = (
    (TEAM, pod()),
    (TEAM, pod(asks="nvlink")),
    (TEAM, pod(asks=f"nvlink.{DRIVER}")),
    (TEAM, pod(asks="gold.example.com")),
    (TEAM, pod("nvidia.com/mig-1g.10gb")),
    (TEAM, pod("")),
    (TEAM, naming("my-own-template")),
    (TEAM, naming(f"gpus-8.{DRIVER}")),
    (SILVER, pod()),
    (SILVER, pod(asks="silver")),
    (SILVER, naming(f"gpus-1.silver.{DRIVER}")),
    (PLAIN, pod(asks="platinum")),
    (PLAIN, naming("gpus-1.platinum.example.com")),
)
REFUSED: Final = (
    (TEAM, pod(asks="platinum")),
    (TEAM, pod(asks="platinum.example.com")),
    (TEAM, pod(asks=f"vfio.{DRIVER}")),
    (TEAM, pod(asks="silver")),
    (TEAM, naming("gpus-1.platinum.example.com")),
    (TEAM, naming(f"gpus-1.x.nvlink.{DRIVER}")),
    (TEAM, naming(f"mig-7g.80gb-1.mig.{DRIVER}")),
    (SILVER, pod(asks="platinum")),
)


def test_pods_come_to_the_classes_that_the_chart_lists_and_to_their_namespaces(server: BareApiServer) -> None:
    eventually(
        lambda: not created(server, *REFUSED[0]).is_good and created(server, SILVER, pod()).is_good,
        "the policy and the namespaces' labels count",
        within_s=ADMITTED_S,
    )
    assert [(call, answer.message) for call in ALLOWED if not (answer := created(server, *call)).is_good] == []
    assert [call for call in REFUSED if created(server, *call).is_good] == []
    message = created(server, *REFUSED[0]).message
    expected = f"pods of namespace {TEAM} may have GPUs of the classes {DRIVER}, nvlink.{DRIVER}, gold.example.com"
    assert expected in message, message
