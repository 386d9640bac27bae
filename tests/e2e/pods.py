"""Pods and claims as JSON, and what to wait for when they run and go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from e2e.api import Api
from e2e.images import PROBE_IMAGE
from e2e.waiting import eventually

NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaimtemplates"
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
DEVICE_CLASS = "gpu.dracaena.dev"

RUN_S = 60.0
"""From a pod's creation until its container runs: 3 s on a free machine."""

GONE_S = 60.0
"""From a pod's deletion until it is gone, its claims freed: 3 s on a free machine."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with one container that shows what it has."""

    name: str
    templates: Mapping[str, str] = field(default_factory=dict)
    """Name within the pod → ResourceClaimTemplate."""
    claims: Mapping[str, str] = field(default_factory=dict)
    """Name within the pod → ResourceClaim."""
    environment: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    restart_policy: str = "Never"
    priority_class: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    """What the container asks for, for example `{"cpu": "2"}`."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the spec."""

    @property
    def path(self) -> str:
        """Path in the API."""
        return f"{PODS}/{self.name}"

    def document(self) -> dict[str, Any]:
        """Return the object to create."""
        resource_claims = [
            *({"name": name, "resourceClaimTemplateName": template} for name, template in self.templates.items()),
            *({"name": name, "resourceClaimName": claim} for name, claim in self.claims.items()),
        ]
        container = {
            "name": "main",
            "image": PROBE_IMAGE,
            "imagePullPolicy": "Never",
            "args": ["show-and-wait"],
            "env": [{"name": name, "value": value} for name, value in self.environment.items()],
            "resources": {
                "claims": [{"name": claim["name"]} for claim in resource_claims],
                "requests": dict(self.requests),
            },
        }
        spec = {
            "restartPolicy": self.restart_policy,
            "priorityClassName": self.priority_class,
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "nodeSelector": dict(self.node_selector),
            "resourceClaims": resource_claims,
            "containers": [container],
            **self.more,
        }
        metadata = {"name": self.name, "labels": dict(self.labels)}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claim_spec(count: int = 1, **request: Any) -> dict[str, Any]:
    """Return the spec of a claim for a number of GPUs; `request` adds fields to its one request."""
    exactly = {"deviceClassName": DEVICE_CLASS, "count": count, **request}
    return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}


def create_claim(api: Api, name: str, spec: Mapping[str, Any]) -> str:
    """Create a ResourceClaim and return its path."""
    api.create(
        CLAIMS,
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec},
    )
    return f"{CLAIMS}/{name}"


def create_template(api: Api, name: str, spec: Mapping[str, Any]) -> str:
    """Create a ResourceClaimTemplate and return its path."""
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": spec},
    }
    api.create(TEMPLATES, document)
    return f"{TEMPLATES}/{name}"


def create_pod(api: Api, pod: Pod) -> Any:
    """Create a pod."""
    return api.create(PODS, pod.document())


def wait_pending(api: Api, pod: Pod, text: str) -> None:
    """Wait until kube-scheduler says about a pod that it cannot be scheduled, with this text."""

    def look() -> bool:
        conditions = api.get(pod.path)["status"].get("conditions", ())
        said = [c.get("message", "") for c in conditions if (c["type"], c["status"]) == ("PodScheduled", "False")]
        return any(text in message for message in said)

    eventually(look, f"pod {pod.name} waits because of {text!r}", within_s=RUN_S)


def wait_event(api: Api, pod: Pod, reason: str, text: str) -> str:
    """Wait for an Event on a pod whose message has this text, and return the message."""

    def look() -> str:
        return next((message for message in pod_events(api, pod, reason) if text in message), "")

    return eventually(look, f"pod {pod.name} has an Event {reason} with {text!r}", within_s=RUN_S)


def pod_events(api: Api, pod: Pod, reason: str) -> list[str]:
    """Return the messages of the Events on a pod that have this reason."""
    found = api.items(EVENTS)
    return [e["message"] for e in found if e["involvedObject"].get("name") == pod.name and e.get("reason") == reason]


def container_id(api: Api, pod: Pod) -> str:
    """Return which container of a pod runs now, nothing while none does; a restarted one has another id."""
    statuses = api.get(pod.path)["status"].get("containerStatuses")
    return str(statuses[0].get("containerID", "")) if statuses else ""


def wait_new_container(api: Api, pod: Pod, former: str) -> None:
    """Wait until a pod has another container than the former one. Between the two it may have none."""
    what = f"pod {pod.name} has a new container"
    eventually(lambda: container_id(api, pod) not in ("", former), what, within_s=RUN_S)


def wait_log(api: Api, pod: Pod) -> str:
    """Wait until the container has printed its line and return it."""
    wait_phase(api, pod, "Running", "Succeeded")
    return wait_printed(api, pod, "main")


def wait_printed(api: Api, pod: Pod, container: str) -> str:
    """Wait until one of a pod's containers, which may run before the pod does, has printed its line, and return it.

    A long line is in the log by parts: until its end is there it is none.
    """

    def log() -> str:
        answer = api.send("GET", f"{pod.path}/log?container={container}")
        return answer.text if answer.status == 200 and answer.text.endswith("\n") else ""

    return eventually(log, f"{container} of {pod.name} prints", within_s=RUN_S)


def wait_phase(api: Api, pod: Pod, *phases: str) -> Any:
    """Wait until a pod is in one of these phases and return it."""

    def look() -> Any | None:
        found = api.find(pod.path)
        return found if found is not None and found["status"].get("phase") in phases else None

    try:
        return eventually(look, f"pod {pod.name} is {' or '.join(phases)}", within_s=RUN_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{why(api, pod)}") from error


def delete_pod(api: Api, pod: Pod, *, grace_s: int | None = None) -> None:
    """Delete a pod and wait until its object is gone."""
    api.delete(pod.path, grace_s=grace_s)
    wait_gone(api, pod)


def wait_gone(api: Api, pod: Pod) -> None:
    """Wait until the object of a deleted pod is gone."""
    eventually(lambda: api.find(pod.path) is None, f"pod {pod.name} is gone", within_s=GONE_S)


def why(api: Api, pod: Pod) -> str:
    """Return what the cluster says about a pod: its conditions and the Events on it."""
    found = api.find(pod.path)
    if found is None:
        return f"pod {pod.name} is not there"
    status = found["status"]
    lines = [
        f"condition {c['type']}={c['status']} {c.get('reason', '')} {c.get('message', '')}"
        for c in status.get("conditions", ())
    ]
    lines += [f"container {c['name']}: {json.dumps(c.get('state'))}" for c in status.get("containerStatuses", ())]
    told = Counter(
        f"event {e.get('reason')}: {e.get('message')}"
        for e in api.items(EVENTS)
        if e["involvedObject"].get("uid") == found["metadata"]["uid"]
    )
    return "\n".join([*lines, *(f"{text} ({count} times)" for text, count in told.items())])


def pod_claims(api: Api, pod: Pod) -> dict[str, Any]:
    """Return the claims of a pod, by their names within the pod."""
    return claims_of(api, api.get(pod.path))


def claims_of(api: Api, pod: Any) -> dict[str, Any]:
    """Return the claims of a pod as it was read, which may have gone since, and its claims with it."""
    generated = {s["name"]: s.get("resourceClaimName") for s in pod["status"].get("resourceClaimStatuses") or ()}
    names = {c["name"]: c.get("resourceClaimName") or generated.get(c["name"]) for c in pod["spec"]["resourceClaims"]}
    found = {name: api.find(f"{CLAIMS}/{claim}") for name, claim in names.items() if claim}
    return {name: claim for name, claim in found.items() if claim is not None}
