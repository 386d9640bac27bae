"""A bundle has what a report needs, and none of the texts that somebody wrote."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from dracaena.cli.installation import bundle
from dracaena.cli.installation.bundle import KEPT, LEFT_OUT, files
from dracaena.cli.installation.examination import CHECKS, examine
from dracaena.cli.installation.snapshot import Listing, Snapshot
from dracaena.cli.installation_reader import READS
from support.installation import changed, healthy, places

CREDENTIALS = (
    "Bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIi.c2ln",
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIi.c2ln",
    "password=hunter2",
    "-----BEGIN PRIVATE KEY-----",
    "dXNlcjpodW50ZXIy/aGVsbG8=",
    "AKIAIOSFODNN7EXAMPLE",
)
WORD = "hunter2"
"""A secret that could be the name of something."""
IDENTITIES = {
    *("name", "namespace", "holderIdentity", "nodeName", "driver", "policyName", "image", "fieldRef"),
    *("renewTime", "lastTransitionTime", "creationTimestamp", "kind", "type", "status", "reason", "phase", "effect"),
    *("kubeletVersion", "containerRuntimeVersion", "failurePolicy", "key", "manager", "extendedResourceName"),
}
"""Fields whose texts are kept where they are plain: names, versions and words of the API."""


def troubled() -> Snapshot:
    """A healthy installation with everything that can have texts of people: Events, messages, environment."""
    snapshot = changed(healthy(), "pods", lambda pods: pods[0].update(status=_STATUS))
    event = {
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "worker-1"},
        "type": "Warning",
        "reason": "GpusWithoutClaim",
        "message": "the file",
        "count": 2,
    }
    return changed(snapshot, "events", lambda events: events.append(event))


_STATUS = {
    "phase": "Pending",
    "conditions": [{"type": "Ready", "status": "False", "reason": "Waiting", "message": "m"}],
    "containerStatuses": [
        {
            "name": "controller",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": "m"}},
        }
    ],
}


def planted(snapshot: Snapshot, secret: str, *, spare: set[str] | None = None) -> Snapshot:
    """Return a snapshot with a secret in every text of every object, and as a key of every map; but not in fields of
    these names, nor in labels by which objects are known."""

    def plant(value: Any, step: str | int = "") -> Any:
        if isinstance(value, dict):
            if spare is not None and step == "labels":
                return value | {"mine": secret}
            return {key: plant(one, key) for key, one in value.items()} | {secret: secret, "password": secret}
        if isinstance(value, list):
            return [plant(one, step) for one in value]
        return secret if isinstance(value, str) and step not in (spare or ()) else value

    kinds = {
        kind: Listing(tuple(plant(copy.deepcopy(one)) for one in found.objects))
        for kind, found in snapshot.kinds.items()
    }
    return replace(snapshot, kinds=kinds)


def written(snapshot: Snapshot) -> str:
    return "".join(content.decode() for content in files(snapshot, examine(snapshot)).values())


@pytest.mark.parametrize("secret", CREDENTIALS)
def test_a_credential_in_any_text_of_any_object_is_not_in_the_bundle(secret: str) -> None:
    assert secret not in written(planted(troubled(), secret))


@pytest.mark.parametrize("kind", sorted(kind for kind, found in troubled().kinds.items() if found.objects))
def test_a_credential_as_the_one_text_of_an_object_is_not_in_the_bundle(kind: str) -> None:
    secret, snapshot = CREDENTIALS[0], troubled()
    checks = [check for check in CHECKS if kind in check.needs]
    for document in snapshot.kinds[kind].objects[-2:]:
        for path, value in places(document):
            if isinstance(value, str):
                hostile: Any = copy.deepcopy(document)
                holder = hostile
                for step in path[:-1]:
                    holder = holder[step]
                holder[path[-1]] = secret
                alone = replace(snapshot, kinds={kind: Listing((hostile,))})
                found = [one for check in checks for one in check.find(alone)]
                assert not any(secret.encode() in one for one in files(alone, found).values()), path


def test_a_secret_that_looks_like_a_name_is_not_in_the_bundle_unless_it_stands_where_names_do() -> None:
    assert WORD not in written(planted(troubled(), WORD, spare=IDENTITIES))


def test_the_search_for_secrets_finds_a_field_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    with_message = {**KEPT, "events": {**KEPT["events"], "message": ...}}
    monkeypatch.setattr(bundle, "KEPT", with_message)
    assert WORD in written(planted(troubled(), WORD, spare=IDENTITIES))
    assert CREDENTIALS[0] not in written(planted(troubled(), CREDENTIALS[0]))


def test_a_bundle_has_what_a_report_needs() -> None:
    snapshot = troubled()
    found = {name: json.loads(content) for name, content in files(snapshot, examine(snapshot)).items()}
    assert found["about.json"]["server"] == "1.37"
    assert {key: found["pools.json"][0][key] for key in ("node", "devices", "taints")} == {
        "node": "worker-1",
        "devices": 4,
        "taints": [{"key": "gpu.dracaena.dev/controller-allocated", "effect": "NoSchedule", "devices": 4}],
    }
    (event,) = found["events.json"]
    assert (event["reason"], event["count"], event["involvedObject"]["name"]) == ("GpusWithoutClaim", 2, "worker-1")
    assert found["pods.json"][0]["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"] == "Error"
    assert found["nodes.json"][0]["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.0"
    (report,) = [one for one in found["findings.json"] if one["check"] == "reports"]
    assert report["text"].startswith(f"nodes worker-1 reported GpusWithoutClaim: {LEFT_OUT} (")


def test_every_kind_that_is_read_has_a_shape_and_no_secret_is_read() -> None:
    assert KEPT.keys() == READS.keys()
    assert not {"secrets", "configmaps"} & READS.keys()


def test_of_the_cluster_s_own_objects_only_those_of_the_driver_are_in() -> None:
    other = {"metadata": {"name": "other.example.com"}, "spec": {}}
    plain = {"metadata": {"name": "payroll", "labels": {"team": "a"}}}
    snapshot = changed(healthy(), "deviceclasses", lambda found: found.append(other))
    text = written(changed(snapshot, "namespaces", lambda found: found.append(plain)))
    assert "other.example.com" not in text
    assert "payroll" not in text
