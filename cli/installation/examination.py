"""All checks, in the order in which a person would look: the server, the chart, the programs, the nodes, the users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from dracaena.cli.installation import control_plane, levels, namespaces, nodes, programs
from dracaena.cli.installation.snapshot import Finding, Listing, Snapshot, State, unknown


@dataclass(frozen=True, slots=True)
class Check:
    """One question about an installation."""

    name: str
    find: Callable[[Snapshot], Iterator[Finding]]
    """Yields what has to be fixed, and what is fine: the latter counts only where nothing has to be fixed."""
    needs: tuple[str, ...] = ()
    """Kinds without which there is no answer."""


CHECKS: Final = (
    Check("server", control_plane.server),
    Check("api", control_plane.api),
    Check("taint-rules", control_plane.taint_rules, ("devicetaintrules",)),
    Check("classes", control_plane.classes, ("deviceclasses",)),
    Check(
        "policies",
        control_plane.policies,
        (
            *("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
            *("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
        ),
    ),
    Check("program-rights", control_plane.program_rights, ("clusterroles", "clusterrolebindings")),
    Check("versions", programs.versions, ("pods",)),
    Check("controller", programs.controller, ("deployments", "pods")),
    Check("leader", programs.leader, ("leases",)),
    Check("pod-security", namespaces.pod_security, ("namespaces", "daemonsets")),
    Check("plugins", programs.plugins, ("daemonsets", "pods")),
    Check("gpu-nodes", nodes.gpu_nodes, ("nodes", "pods", "daemonsets")),
    Check("pools", nodes.pools, ("pods", "resourceslices")),
    Check("taints", nodes.taints, ("resourceslices",)),
    Check("other-drivers", nodes.other_drivers, ("nodes", "resourceslices")),
    Check("levels", levels.topology_levels, ("nodes", "deployments", "resourceslices")),
    Check("reports", nodes.reports, ("events",)),
    Check("namespaces", namespaces.label_values, ("namespaces", "mutatingadmissionpolicies")),
    Check("quotas", namespaces.quotas, ("namespaces",)),
    Check("your-rights", control_plane.rights),
)


def examine(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Return the findings of all checks, at least one of most; the same for the same snapshot. Never raises, whatever
    the objects hold."""
    return tuple(replace(one, check=check.name) for check in CHECKS for one in _findings(check, snapshot))


def _findings(check: Check, snapshot: Snapshot) -> list[Finding]:
    listings = {kind: snapshot.kinds.get(kind, Listing(why_unread="it was not asked for")) for kind in check.needs}
    unread = {kind: listing for kind, listing in listings.items() if listing.why_unread}
    if unread:
        why = next(iter(unread.values())).why_unread
        return [unknown("{} could not be read ({})", tuple(unread), why)]
    found = list(check.find(snapshot))
    return [one for one in found if one.state is not State.OK] or found
