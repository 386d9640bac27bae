"""Cases whose reasons used to mislead, or that nobody was told of: the same words in Events, `explain`, `simulate` and
`validate`, each asked as a user asks it, on the embedded API with a running controller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.api.resource_objects import DeviceClass, ResourceClaim
from dracaena.cli.main import main
from dracaena.kube.client import KubeClient
from dracaena.kube.events import Event
from support.allocation import DRIVER, blocks, machine
from support.api_ground import ApiGround
from support.controller import NAMESPACE, create_pod, publish, running_controller, transport
from support.kube import wait_for

EIGHT = machine("eight", blocks(8, inside="NV12", outside="NV12"), product_name="NVIDIA A100", memory_bytes=80 << 30)
NODES = {"a": EIGHT, "b": EIGHT}
NVIDIA = "gpu.nvidia.com"
TIME_SLICING = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}
WRONG_DOMAIN: dict[str, Any] = {
    "selectors": [{"cel": {"expression": f'device.attributes["{NVIDIA}"].productName == "NVIDIA A100"'}}]
}


def one(class_name: str = DRIVER, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": "gpu", "exactly": {"deviceClassName": class_name, **fields}}]


def opaque(driver: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"opaque": {"driver": driver, "parameters": parameters}}]


@dataclass(frozen=True)
class Case:
    """A claim and what a container names of it, and the words that all have to say."""

    requests: list[dict[str, Any]]
    words: str
    event: str = "WaitingForGPUs"
    more: dict[str, Any] = field(default_factory=dict)
    """What the claim's devices have besides requests."""
    named: str = ""
    validate: str | None = ""
    """What `validate` says of it; empty: the same, None: nothing, it would need a cluster."""


RIGHT_DOMAIN = f"no GPU has the attribute {NVIDIA}/productName: did you mean {DRIVER}/productName?"
CASES = {
    "a config for another driver": Case(
        one(),
        f"the configuration for {NVIDIA} does nothing: all of its requests get devices of {DRIVER}",
        "ClaimPartsIgnored",
        {"config": opaque(NVIDIA, TIME_SLICING)},
    ),
    "a config of NVIDIA's group for our driver": Case(
        one(),
        "instead of NVIDIA's GpuConfig write `parameters: {apiVersion: gpu.dracaena.dev/v1alpha1, kind: GpuConfig, "
        "sharing: {strategy: TimeSlicing, interval: Long, enforcement: BestEffort}}`",
        more={"config": opaque(DRIVER, TIME_SLICING)},
    ),
    "a typo in the first alternative": Case(
        [
            {
                "name": "gpu",
                "firstAvailable": [
                    {"name": "best", "deviceClassName": DRIVER, **WRONG_DOMAIN},
                    {"name": "any", "deviceClassName": DRIVER},
                ],
            }
        ],
        f"request gpu/best: this alternative is never taken: {RIGHT_DOMAIN}",
        "ClaimPartsIgnored",
        validate=RIGHT_DOMAIN,
    ),
    "more GPUs in the first alternative than any node has": Case(
        [
            {
                "name": "gpu",
                "firstAvailable": [
                    {"name": "best", "deviceClassName": DRIVER, "count": 9},
                    {"name": "any", "deviceClassName": DRIVER},
                ],
            }
        ],
        "request gpu/best: this alternative is never taken: no node that offers GPUs has 9 GPUs that its class and",
        "ClaimPartsIgnored",
        validate=None,
    ),
    "more memory in the first alternative than any GPU has": Case(
        [
            {
                "name": "gpu",
                "firstAvailable": [
                    {"name": "best", "deviceClassName": DRIVER, "capacity": {"requests": {"memory": "9Ti"}}},
                    {"name": "any", "deviceClassName": DRIVER},
                ],
            }
        ],
        "request gpu/best: this alternative is never taken: no GPU that its class and selectors match has 9216 GiB of",
        "ClaimPartsIgnored",
        validate=None,
    ),
    "a capacity of GPUs that nobody shares": Case(
        one(capacity={"requests": {"memory": "10Gi"}}),
        "no GPU can be shared: capacity.requests only say how large one has to be, and all of it is taken",
        "ClaimPartsIgnored",
        validate=None,
    ),
    "a capacity that no GPU has": Case(
        one(capacity={"requests": {f"{NVIDIA}/memory": "10Gi"}}),
        f"no GPU has the capacity {NVIDIA}/memory: did you mean memory?",
        "ClaimPartsIgnored",
    ),
    "a capacity with the domain that selectors want": Case(
        one(capacity={"requests": {f"{DRIVER}/memory": "10Gi"}}),
        f"no GPU has the capacity {DRIVER}/memory: did you mean memory?",
    ),
    "a container that names no request of the claim": Case(
        one(),
        "no request gpus in claim c (there: gpu): the container gets nothing by that name",
        "ClaimPartsIgnored",
        named="gpus",
    ),
    "a request that no container names": Case(
        [*one(), {"name": "more", "exactly": {"deviceClassName": DRIVER}}],
        "no container names request more of claim c: its devices are taken, and no container sees them",
        "ClaimPartsIgnored",
        named="gpu",
    ),
    "a selector with a wrong domain": Case(one(**WRONG_DOMAIN), RIGHT_DOMAIN),
    "more GPUs than any node has": Case(one(count=9), "no node has 9 GPUs, the largest has 8", validate=None),
    "a misspelt class": Case(
        one("gpu.dracaena.dve"),
        f"DeviceClass gpu.dracaena.dve does not exist: did you mean {DRIVER}?",
        validate=f"did you mean {DRIVER}?",
    ),
    "sharing as NVIDIA's driver writes it": Case(
        one(),
        "expected no such field (known: enforcement,",
        more={"config": opaque(DRIVER, {**TIME_SLICING, "apiVersion": f"{DRIVER}/v1alpha1"})},
    ),
    "a kind of configuration that only NVIDIA's driver has": Case(
        one(),
        "'MigDeviceConfig', expected one of 'TopologyPolicy', 'GpuConfig'",
        more={"config": opaque(DRIVER, {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "MigDeviceConfig"})},
        validate="\"MigDeviceConfig\", expected one of 'TopologyPolicy', 'GpuConfig'",
    ),
    "a constraint on what nobody has": Case(
        one(count=2),
        "no GPU has the attribute example.com/rack",
        more={"constraints": [{"matchAttribute": "example.com/rack"}]},
    ),
}


def documents(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """The claim and the pod, as a user writes them."""
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": NAMESPACE},
        "spec": {"devices": {"requests": case.requests, **case.more}},
    }
    use = {"name": "c", **({"request": case.named} if case.named else {})}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": NAMESPACE},
        "spec": {
            "containers": [{"name": "main", "image": "i", "resources": {"claims": [use]}}],
            "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
        },
    }
    return claim, pod


@pytest.fixture
def client(server: ApiGround, tmp_path: Path) -> KubeClient:
    made = KubeClient(transport(server, tmp_path))
    publish(made, NODES)
    return made


@pytest.fixture
def cluster(client: KubeClient, server: ApiGround, tmp_path: Path) -> Iterator[KubeClient]:
    with running_controller(transport(server, tmp_path)):
        yield client


def create(client: KubeClient, case: Case) -> None:
    claim, pod = documents(case)
    client.create(ResourceClaim, {key: claim[key] for key in ("metadata", "spec")}, namespace=NAMESPACE)
    create_pod(client, "p", **pod["spec"])


def told(client: KubeClient, reason: str) -> list[Event]:
    """Return what was decided about the pod, not that the first decision took too long, as on a crowded machine."""
    events = client.list(Event, namespace=NAMESPACE).items
    decided = [event for event in events if not event.message.startswith("no decision within the time allowed")]
    return [event for event in decided if event.reason == reason and event.involved_object.kind == "Pod"]


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command prints, in one line."""
    capsys.readouterr()
    main([str(argument) for argument in arguments])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", CASES)
def test_events_and_explain_say_what_is_so(
    name: str, cluster: KubeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    create(cluster, case)
    wait_for(lambda: told(cluster, case.event), "the Event")
    (event,) = told(cluster, case.event)
    assert case.words in event.message
    capsys.readouterr()
    assert main(["explain", "pod", "p", "-o", "json", "--kubeconfig", str(tmp_path / "kubeconfig")]) == 0
    out = capsys.readouterr().out
    reasons = json.loads(out[out.index("{\n") :])["reasons"]
    assert any(case.words in reason for reason in reasons), reasons
    assert sum(case.words in reason for reason in reasons if not reason.startswith("ignored: ")) <= 1, "said twice"


@pytest.mark.parametrize("name", CASES)
def test_simulate_and_validate_say_the_same(
    name: str, client: KubeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    written = tmp_path / "asked.yaml"
    written.write_text(yaml.safe_dump_all(documents(case)), encoding="utf-8")
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(yaml.safe_dump_all(cluster_documents(client)), encoding="utf-8")
    assert case.words in said(capsys, "simulate", "-f", cluster, "-f", written)
    found = said(capsys, "validate", written)
    if case.validate is None:
        assert "0 errors, 0 warnings" in found
    else:
        assert (case.validate or case.words) in found


def cluster_documents(client: KubeClient) -> list[dict[str, Any]]:
    """What `kubectl get -o yaml` writes of the cluster."""
    import msgspec

    from dracaena.api.objects import Node
    from dracaena.api.resource_objects import ResourceSlice

    kinds = (Node, ResourceSlice, DeviceClass)
    return [
        {"apiVersion": kind.API_VERSION, "kind": kind.KIND, **json.loads(msgspec.json.encode(item))}
        for kind in kinds
        for item in client.list(kind).items
    ]


def test_explain_of_one_gpu_is_one_line(
    cluster: KubeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(cluster, Case(one(), ""))
    wait_for(lambda: told(cluster, "GPUsAllocated"), "the claim")
    capsys.readouterr()
    assert main(["explain", "claim", "c", "--kubeconfig", str(tmp_path / "kubeconfig")]) == 0
    about, device, *why = capsys.readouterr().out.splitlines()
    assert about == "claim default/c has 1 device, reserved for p"
    assert device.startswith("  a/gpu-")
    assert why == ["  1 of the GPUs of a: one GPU"]
    assert main(["explain", "claim", "c", "-o", "wide", "--kubeconfig", str(tmp_path / "kubeconfig")]) == 0
    assert "\n  next best: one GPU on b" in capsys.readouterr().out
