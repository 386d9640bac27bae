"""The rights that the chart grants, beside those that the audit log of all other tests here saw in use."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml

from e2e.install.chart_cluster import AUDITED, NAMESPACE, RELEASE, ChartCluster
from e2e.install.helm import CHART
from e2e.installation import DRIVER

PARTS = dict(zip(AUDITED, ("controller", "kubelet-plugin"), strict=True))

NEEDED_MODULES = {
    "test_bad_input",
    "test_gate",
    "test_mig_layouts",
    "test_repairs",
    "test_taint_rules",
    "test_unchanged_manifests",
    "test_upgrade",
    "test_waiting",
}
"""Tests that bring about what happens seldom."""


WHILE_LEAVING = (
    f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/controller.{DRIVER}",
    "/apis/resource.k8s.io/v1/resourceclaimtemplates?",
)
"""The only requests that may be refused: `helm uninstall` deletes kind after kind without waiting in between, so the
rights go while the pods end. A controller that gives its Lease back then is refused (the Lease runs out by itself), and
so is one that looks for unused templates just then, which it does by the clock. A hook that kept the rights longer
would take them away for a moment in each upgrade, which is worse. That both are granted is checked all the same."""


class Right(NamedTuple):
    """One verb of one program."""

    part: str
    group: str
    resource: str
    verb: str


def granted(chart: ChartCluster) -> set[Right]:
    """Read the rules of the chart as helm renders them, with those that only a value adds."""
    flags = ("--kube-version=1.36.3", "--set=kubeletPlugin.migLayoutCondition=true")
    rendered = chart.helm.do("template", RELEASE, CHART, "--namespace", NAMESPACE, *flags)
    rights = set()
    for document in yaml.safe_load_all(rendered):
        if document is None or document["kind"] not in ("ClusterRole", "Role"):
            continue
        part = document["metadata"]["labels"]["app.kubernetes.io/component"]
        if part not in PARTS.values():
            continue  # of a hook of `helm uninstall`, which no program of ours runs with
        for rule in document["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    rights |= {Right(part, group, resource, verb) for verb in rule["verbs"]}
    return rights


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
    events = list(chart.audited())
    allowed, seen = granted(chart), Counter(right for event in events for right in used(event))
    lines = [f"\n{'program':<15}{'API group':<22}{'resource':<25}{'verb':<37}granted {'used':>7}"]
    for right in sorted(allowed | seen.keys()):
        given = "yes" if right in allowed else "NO"
        lines.append(f"{right.part:<15}{right.group:<22}{right.resource:<25}{right.verb:<37}{given:<8}{seen[right]:>7}")
    with capsys.disabled():
        sys.stdout.write("\n".join(lines) + "\n")
    refused = {
        f"{event['user']['username']} {event['verb']} {event['requestURI']}"
        for event in events
        if event.get("responseStatus", {}).get("code") == 403 and not event["requestURI"].startswith(WHILE_LEAVING)
    }
    assert refused == set()
    assert seen.keys() - allowed == set(), f"used and not granted to {DRIVER}"
    assert allowed - seen.keys() == set(), "granted and not used"
