"""The programs of the chart: the controller, its leader, and the kubelet plugins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dracaena.cli.installation.snapshot import (
    VERSION,
    Document,
    Finding,
    Snapshot,
    entries,
    fine,
    labels,
    name_of,
    number,
    text,
    to_fix,
)

CONTROLLER: Final = "controller"
PLUGIN: Final = "kubelet-plugin"
"""Values of the label for components."""


def versions(snapshot: Snapshot) -> Iterator[Finding]:
    """All programs have one version, that of this command."""
    running = _by_version(snapshot.objects("pods"))
    if len(running) > 1:
        seen = tuple(f"{version}={len(names)}" for version, names in sorted(running.items()))
        words = (
            "pods of several versions run ({}): an upgrade is under way, or hangs: kubectl rollout status says where"
        )
        yield to_fix(words, seen)
    others = tuple(sorted(set(running) - {snapshot.command_version}))
    if others and len(running) == 1:
        words = "the programs have version {} and this command has {}: install the same, or read its answers with care"
        yield to_fix(words, others, snapshot.command_version)
    if running and not others:
        yield fine("all programs and this command have version {}", snapshot.command_version)
    if not running:
        yield to_fix("no pod of the chart runs: an admin has to install it (docs/install.md)")


def controller(snapshot: Snapshot) -> Iterator[Finding]:
    """The controller's Deployment has its replicas ready."""
    found = snapshot.of_component("deployments", CONTROLLER)
    if not found:
        yield to_fix("there is no Deployment of the controller: an admin has to install the chart (docs/install.md)")
    for one in found:
        wanted, ready = number(one, "spec", "replicas"), number(one, "status", "readyReplicas")
        name = f"{text(one, 'metadata', 'namespace')}/{name_of(one)}"
        if ready < max(wanted, 1):
            words = (
                "{} of {} replicas of Deployment {} are ready: kubectl describe and kubectl logs of its pods say why"
            )
            yield to_fix(words, str(ready), str(wanted), name)
        else:
            yield fine("{} of {} replicas of Deployment {} are ready", str(ready), str(wanted), name)
    yield from _unready(snapshot, CONTROLLER)


def leader(snapshot: Snapshot) -> Iterator[Finding]:
    """Some controller leads."""
    if snapshot.no_leader:
        yield to_fix("{}: no pod gets GPUs meanwhile; the logs of the controllers say why", snapshot.no_leader)
    else:
        holders = {text(one, "spec", "holderIdentity") for one in snapshot.objects("leases")} - {""}
        yield fine("{} leads", tuple(sorted(holders)))


def plugins(snapshot: Snapshot) -> Iterator[Finding]:
    """The plugins' DaemonSet has a ready pod on each of its nodes."""
    found = snapshot.of_component("daemonsets", PLUGIN)
    if not found:
        yield to_fix("there is no DaemonSet of the plugin: an admin has to install the chart (docs/install.md)")
    for one in found:
        wanted, ready = number(one, "status", "desiredNumberScheduled"), number(one, "status", "numberReady")
        name = f"{text(one, 'metadata', 'namespace')}/{name_of(one)}"
        if not wanted:
            words = "DaemonSet {} is for no node: no node has a label of its affinity (docs/install.md)"
            yield to_fix(words, name)
        elif ready < wanted:
            yield to_fix("{} of {} plugins of DaemonSet {} are ready", str(ready), str(wanted), name)
        else:
            yield fine("{} of {} plugins of DaemonSet {} are ready", str(ready), str(wanted), name)
    yield from _unready(snapshot, PLUGIN)


def is_ready(pod: Document) -> bool:
    """Whether a pod says that it is ready."""
    return any(
        text(one, "type") == "Ready" and text(one, "status") == "True" for one in entries(pod, "status", "conditions")
    )


def _unready(snapshot: Snapshot, component: str) -> Iterator[Finding]:
    """Yield what keeps pods from being ready, with the pods of each reason."""
    reasons: dict[str, list[str]] = {}
    for pod in snapshot.of_component("pods", component):
        if not is_ready(pod):
            reasons.setdefault(_why_unready(pod), []).append(name_of(pod))
    for reason, names in sorted(reasons.items()):
        words = "not ready ({}): pods {}: kubectl describe shows their Events, and an admin acts on them"
        yield to_fix(words, reason, tuple(sorted(names)))


def _why_unready(pod: Document) -> str:
    for one in entries(pod, "status", "containerStatuses"):
        if reason := text(one, "state", "waiting", "reason") or text(one, "lastState", "terminated", "reason"):
            return reason
    for one in entries(pod, "status", "conditions"):
        if text(one, "type") == "PodScheduled" and text(one, "status") == "False":
            return text(one, "reason") or "Unschedulable"
    return "Running" if text(pod, "status", "phase") == "Running" else "Pending"


def _by_version(pods: Iterable[Document]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pod in pods:
        if version := labels(pod).get(VERSION):
            found.setdefault(version, []).append(name_of(pod))
    return found
