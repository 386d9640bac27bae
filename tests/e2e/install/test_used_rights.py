"""The rights that the chart grants, beside those that the audit log of all other tests here saw in use."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml

from dracaena.api.workload_objects import KINDS
from e2e.install.chart_cluster import AUDITED, NAMESPACE, RELEASE, ChartCluster
from e2e.install.helm import CHART
from e2e.installation import DRIVER
from support.gpu_lists import entry

PARTS = dict(zip(AUDITED, ("controller", "kubelet-plugin"), strict=True))

NEEDED_MODULES = {
    "test_bad_input",
    "test_gate",
    "test_mig_layouts",
    "test_page",
    "test_repairs",
    "test_taint_rules",
    "test_unchanged_manifests",
    "test_upgrade",
    "test_waiting",
}
"""Tests that bring about what happens seldom."""


FOREVER = "9999"
"""After every timestamp."""


CONDITION = "--set-json=kubeletPlugin.settings.gpus=" + json.dumps([entry("vgpu", file="/x", condition=True)])
"""What only this value adds is in no installation of the tests."""


class Right(NamedTuple):
    """One verb of one program."""

    part: str
    group: str
    resource: str
    verb: str


UNSEEN = {
    Right("controller", kind.API_VERSION.partition("/")[0], kind.RESOURCE, verb)
    for kind in KINDS.values()
    for verb in ("list", "watch")
}
"""Kinds that are watched once there are pods of theirs; test_watches.py of the controller tries each."""


def rendered(chart: ChartCluster) -> list[Any]:
    """Return what helm makes of the chart for the two parts, with what only a value adds. Hooks of `helm uninstall` are
    no part: no program of ours runs with their rights."""
    flags = ("--kube-version=1.36.3", CONDITION)
    documents = yaml.safe_load_all(chart.helm.do("template", RELEASE, CHART, "--namespace", NAMESPACE, *flags))
    return [one for one in documents if one is not None and part_of(one) in PARTS.values()]


def part_of(document: Any) -> str:
    return str(document["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def granted(documents: list[Any]) -> set[Right]:
    """Read the rules of the chart."""
    rights = set()
    for document in documents:
        if document["kind"] not in ("ClusterRole", "Role"):
            continue
        for rule in document["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    rights |= {Right(part_of(document), group, resource, verb) for verb in rule["verbs"]}
    return rights


def times_without_rights(chart: ChartCluster, documents: list[Any]) -> list[tuple[str, str]]:
    """Return from when to when roles or bindings of the two parts were gone, from the audit log.

    `helm uninstall` deletes kind after kind without waiting in between, so the rights go while the pods end. What these
    ask for then is refused: a controller gives its Lease back (which runs out by itself) or looks for unused templates,
    by the clock; a watch has run for its minutes and is begun again. A hook that kept the rights longer would take them
    away for a moment in each upgrade, which is worse.
    """
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    ours = {(f"{one['kind'].lower()}s", one["metadata"]["name"]) for one in documents if one["kind"] in kinds}
    times: list[tuple[str, str]] = []
    gone: set[tuple[str, str]] = set()
    since = ""
    for event in chart.written_rights():
        written = event["objectRef"]["resource"], event["objectRef"].get("name", "")
        if written in ours and event["verb"] == "delete":
            since = since if gone else event["requestReceivedTimestamp"]
            gone.add(written)
        elif written in gone:
            gone.remove(written)
            if not gone:
                times.append((since, event["stageTimestamp"]))
    return [*times, (since, FOREVER)] if gone else times


def is_refused(event: Any) -> bool:
    return bool(event.get("responseStatus", {}).get("code") == 403)


def is_while(event: Any, times: list[tuple[str, str]]) -> bool:
    """Whether a request was under way at one of these times."""
    return any(
        since <= event["stageTimestamp"] and event["requestReceivedTimestamp"] <= until for since, until in times
    )


def used(event: Any) -> Iterator[Right]:
    """Yield what the API server asked the authorizer for, about one request."""
    part, target = PARTS[event["user"]["username"]], event.get("objectRef")
    if target is None:
        return  # /version and the like, which everybody may
    subresource = f"/{target['subresource']}" if "subresource" in target else ""
    resource = f"{target['resource']}{subresource}"
    group, verb = target.get("apiGroup", ""), event["verb"]
    if "impersonatedUser" in event:
        yield Right(part, "authentication.k8s.io", "nodes", "impersonate:associated-node")
        yield Right(part, group, resource, f"impersonate-on:associated-node:{verb}")
        return
    yield Right(part, group, resource, verb)
    if resource == "resourceclaims/status":
        written = event.get("requestObject", {}).get("status", {})
        if {"allocation", "reservedFor"} & written.keys():
            yield Right(part, group, "resourceclaims/binding", verb)
        if "devices" in written:
            scope = "arbitrary-node" if part == "controller" else "associated-node"
            yield Right(part, group, "resourceclaims/driver", f"{scope}:{verb}")


def test_rights_granted_are_those_used(
    chart: ChartCluster, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if not {item.path.stem for item in request.session.items} >= NEEDED_MODULES:
        pytest.skip("the audit log is whole only when all tests of the chart run")
    documents = rendered(chart)
    without = times_without_rights(chart, documents)
    events = [event for event in chart.audited() if not (is_refused(event) and is_while(event, without))]
    allowed, seen = granted(documents), Counter(right for event in events for right in used(event))
    lines = [f"\n{'program':<15}{'API group':<22}{'resource':<25}{'verb':<37}granted {'used':>7}"]
    for right in sorted(allowed | seen.keys()):
        given = "yes" if right in allowed else "NO"
        lines.append(f"{right.part:<15}{right.group:<22}{right.resource:<25}{right.verb:<37}{given:<8}{seen[right]:>7}")
    with capsys.disabled():
        sys.stdout.write("\n".join(lines) + "\n")
    refused = {
        f"{event['user']['username']} {event['verb']} {event['requestURI']}" for event in events if is_refused(event)
    }
    assert refused == set()
    assert seen.keys() - allowed == set(), f"used and not granted to {DRIVER}"
    assert allowed - seen.keys() - UNSEEN == set(), "granted and not used"
    assert allowed >= UNSEEN
