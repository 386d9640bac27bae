"""`dracaena simulate`: what the controller would do with the pods and claims of some files. Touches no cluster."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dracaena.api.errors import BadInputError
from dracaena.api.extended_resources import GPUS
from dracaena.api.topology_levels import DEFAULT_LEVELS
from dracaena.cli.commands import Commands, add_driver_name, add_strict

if TYPE_CHECKING:
    from dracaena.api.objects import Node
    from dracaena.api.resource_objects import ResourceClaimTemplate
    from dracaena.cli.cluster_objects import ClusterObjects
    from dracaena.cli.cut_parts import CutParts
    from dracaena.cli.manifests import Manifest
    from dracaena.controller.simulation import GangOutcome, Outcome, Simulation
    from dracaena.validation import Rewriting

_DESCRIPTION: Final = """\
Read Kubernetes objects from files and say what the controller would do, pod by pod, without a cluster.

It reads Nodes, ResourceSlices, DeviceTaintRules, DeviceClasses, ResourceClaims, ResourceClaimTemplates, Pods, the
workloads that create pods (Deployments, StatefulSets, DaemonSets, Jobs, CronJobs, JobSets, LeaderWorkerSets, and any
other object that has pod templates), and Namespaces: their quotas, and the label with which new pods get claims in
place of nvidia.com/gpu. Allocated claims hold their devices. Pods are decided by priority (spec.priority: a
PriorityClass is not looked up), then by age, then in the order of the files; a pod that was never created comes after
those that were. The pods of a JobSet, of an Indexed Job, of a group of a LeaderWorkerSet and of a PodGroup are placed
at once, in the smallest domain that holds them all: a node, an NVLink clique, a rack (--topology-levels), the cluster.
Claims that no pod uses come last, each as if a pod without other needs used it.

Exit code: 0 even if something gets no devices, 2 if something cannot be read or, with --strict, is not understood.
Remarks go to standard error.
"""
_EXAMPLES: Final = """\
examples:
  What would this pod get in my cluster now?
      kubectl get -A -o yaml \\
          nodes,namespaces,resourceslices,deviceclasses,resourceclaims,resourceclaimtemplates,pods > cluster.yaml
      dracaena simulate -f cluster.yaml -f pod.yaml

  How many more of my pods fit now?
      dracaena simulate -f cluster.yaml -f pod.yaml --what-fits

  With no cluster at all: a recorded machine as the only node
      dracaena topology show --machine dgx-1v -o resourceslices --node worker-1 > worker-1.yaml
      dracaena simulate -f worker-1.yaml -f deploy/deviceclasses -f pod.yaml
"""
_ONE_BY_ONE: Final = (
    "gangs are placed as a whole here, and the controller decides for their pods one by one: in a cluster they may be"
    " further apart, or fit only in part"
)

_POD_S: Final = 10.0
"""How long one decision may take here: a hundred times as long as in the controller, for a person waits for it."""

_MISTAKES_SHOWN: Final = 10
"""How many mistakes of the input are named: a cluster of a later version may have a field that we do not know in a
thousand places."""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "simulate",
        help="say what the controller would do with the pods and claims in some files",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "-f",
        "--filename",
        dest="paths",
        metavar="PATH",
        action="append",
        required=True,
        help="file or folder with Kubernetes objects, - for standard input; may be repeated",
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="output format (default: table)"
    )
    parser.add_argument(
        "--what-fits",
        action="store_true",
        help="say how many copies of each pod, workload and claim template fit into the cluster as it is now",
    )
    parser.add_argument(
        "--topology-levels",
        metavar="LABEL,…",
        default=",".join(DEFAULT_LEVELS.labels),
        help="node labels that name racks, blocks and the like, the largest first, or the name of a known list, as in "
        "the controller's setting topology-levels (default: %(default)s)",
    )
    add_driver_name(parser)
    add_strict(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from dracaena.cli.cluster_objects import read_cluster_objects
    from dracaena.cli.columns import print_lines, shown
    from dracaena.cli.cut_parts import CutParts
    from dracaena.cli.manifests import load_manifests, not_understood
    from dracaena.cli.what_fits import fit_document, fit_table, fits, pod_templates
    from dracaena.cli.workloads import is_workload, why_not_simulated, workload_pods
    from dracaena.controller.queue.time_budgets import Deadline
    from dracaena.controller.simulation import Simulation
    from dracaena.process.clock import SystemClock
    from dracaena.validation import Rewriting
    from dracaena.validation.topology_levels import read_topology_levels

    try:
        levels = read_topology_levels(list(filter(None, arguments.topology_levels.split(","))))
    except BadInputError as error:
        raise BadInputError(f"--topology-levels {error}") from error
    if levels.is_kueues:
        raise BadInputError(
            "--topology-levels kueue: nothing is read of a cluster here, name the labels of its Topology"
        )
    clock = SystemClock()
    manifests = load_manifests(arguments.paths)
    rewriting = Rewriting([one.object for one in manifests.objects], arguments.driver_name)
    objects = read_cluster_objects(
        [replace(one, object=rewriting(one.object)) for one in manifests.objects], is_workload=is_workload
    )
    assumed = tuple(_nodes_without_object(objects))
    made = workload_pods(objects.workloads, (*objects.nodes, *assumed), objects.pods)

    def start(templates: Iterable[ResourceClaimTemplate]) -> Simulation:
        made = Simulation(
            arguments.driver_name,
            nodes=(*objects.nodes, *assumed),
            slices=objects.slices,
            classes=objects.classes,
            taint_rules=objects.taint_rules,
            claims=objects.claims,
            templates=templates,
            namespaces=objects.namespaces,
            levels=levels,
        )
        made.limit = lambda: Deadline(clock, _POD_S).begin()
        return made

    simulation = start(objects.templates)
    refused = (
        *_rewritten(manifests.objects, rewriting),
        *_refused(manifests.objects, arguments.driver_name, rewriting),
    )
    unclear = not_understood(manifests.objects) if arguments.strict else ()
    odd = tuple(why for one in manifests.objects if (why := why_not_simulated(one)) is not None)
    notes = (*manifests.left_out, *unclear, *objects.left_out, *odd, *refused, *made.remarks)
    for line in (*notes, *_remarks(objects, assumed, simulation)):
        print(f"dracaena: {shown(line)}", file=sys.stderr)
    documents: list[dict[str, Any]]
    if arguments.what_fits:
        found = list(fits(pod_templates(objects, made.pods), objects, start))
        documents, lines = [fit_document(fit) for fit in found], fit_table(found)
    else:
        outcomes = list(simulation.outcomes((*objects.pods, *made.pods), objects.pod_groups))
        parts = CutParts(arguments.driver_name, objects.slices, objects.claims)
        documents, lines = [_document(outcome) for outcome in outcomes], _table(outcomes, simulation, parts)
        if any(outcome.gang is not None and outcome.gang.is_placed for outcome in outcomes):
            print(f"dracaena: {_ONE_BY_ONE}", file=sys.stderr)
    if arguments.output == "json":
        print(json.dumps(documents, indent=2))
    else:
        print_lines(lines)
    return 2 if arguments.strict and (unclear or odd) else 0


def _nodes_without_object(objects: ClusterObjects) -> Iterator[Node]:
    """Yield a bare node for each node that slices name and the input lacks, so that slices alone can be simulated."""
    from dracaena.api.objects import Node, ObjectMeta

    known = {node.metadata.name for node in objects.nodes}
    for name in sorted({item.spec.node_name for item in objects.slices} - known - {""}):
        yield Node(metadata=ObjectMeta(name=name))


def _rewritten(manifests: Sequence[Manifest], rewriting: Rewriting) -> Iterator[str]:
    """Say how many objects are not simulated as they were written."""
    changed = [one for one in manifests if rewriting(one.object) is not one.object]
    if changed:
        yield (
            f"{len(changed)} of the objects ask for {GPUS} in a namespace whose new pods get claims in its place, the"
            f" first at {changed[0].source}: simulated with these claims"
        )


def _refused(manifests: Sequence[Manifest], driver: str, rewriting: Rewriting) -> Iterator[str]:
    """Yield what the API server would reject in objects that people write: they would never get to a decision."""
    mistakes = _mistakes(manifests, driver, rewriting)
    yield from islice(mistakes, _MISTAKES_SHOWN)
    left = sum(1 for _ in mistakes)
    if left:
        yield f"{left} more such mistakes: dracaena validate names them all"


def _mistakes(manifests: Sequence[Manifest], driver: str, rewriting: Rewriting) -> Iterator[str]:
    from dracaena.api.extended_resources import ASKS
    from dracaena.validation import Severity, validate_object

    for manifest in manifests:
        if manifest.object["kind"] == "ResourceSlice":  # no person wrote it
            continue
        for finding in validate_object(manifest.object, driver, rewriting):
            if finding.message.startswith(ASKS):
                yield f"{finding.object}: {finding.message}: it needs {finding.expected}"
            elif finding.severity is Severity.ERROR:
                place = manifest.source.place.at(finding.path)
                where = f"{manifest.source.file}:{place.line}:{place.column}"
                yield f"{where}: a mistake in {finding.object}, taken as far as it goes: {finding}"


def _remarks(objects: ClusterObjects, assumed: Sequence[Node], simulation: Simulation) -> Iterator[str]:
    from dracaena.controller.allocation.explanation import NAMES_SHOWN

    if assumed:
        names = ", ".join(node.metadata.name for node in assumed[:NAMES_SHOWN])
        names += ", …" if len(assumed) > NAMES_SHOWN else ""
        yield f"not in the input, so assumed to have no labels and taints: {len(assumed)} of the nodes ({names})"
    if not objects.nodes and not assumed:
        yield "the input has neither Nodes nor ResourceSlices: nothing can fit"
    for problem in simulation.inventory.problems():
        device = f" device {problem.device}" if problem.device else ""
        yield f"pool {problem.pool}{device} is left out of the choice: {problem.text}"


def _document(outcome: Outcome) -> dict[str, Any]:
    keys = ("request", "driver", "pool", "device")
    return {
        "claim": outcome.claim,
        "pod": outcome.pod,
        "node": outcome.node,
        "devices": [{key: getattr(result, key) for key in keys} for result in outcome.devices],
        "score": dict(outcome.decision.score) if outcome.decision is not None else {},
        "reason": outcome.reason,
        "help": list(outcome.remedies),
        "ignored": list(outcome.ignored),
        "gang": None if outcome.gang is None else _gang_document(outcome.gang),
    }


def _gang_document(gang: GangOutcome) -> dict[str, Any]:
    return {"name": gang.name, "members": gang.members, "placed": gang.is_placed, "reason": gang.text}


def _table(outcomes: Sequence[Outcome], simulation: Simulation, parts: CutParts) -> Iterator[str]:
    """`parts` are those that claims hold before the first outcome."""
    from dracaena.cli.columns import aligned, wrapped

    if not outcomes:
        yield "nothing to decide: the input has no pending pod with claims, and no claim without devices"
        return
    rows = [("POD", "CLAIM", "NODE", "GPUS", "LINKS")]
    for outcome in outcomes:
        links = outcome.decision.links if outcome.decision is not None else "-"
        rows.append((outcome.pod or "-", outcome.claim, outcome.node or "-", _gpus(outcome, simulation), links))
    lines = aligned(rows)
    yield next(lines)
    for line, outcome in zip(lines, outcomes, strict=True):
        yield line
        devices = [(one.pool, one.device) for one in outcome.devices if one.driver == simulation.inventory.driver]
        parts.take(devices)
        yield from (f"    {drawn}" for drawn in parts.lines(devices))
        yield from wrapped(outcome.reason, first=4, rest=4)
        for text in outcome.remedies:
            yield from wrapped(f"would help: {text}", first=4, rest=6)
        for text in outcome.ignored:
            yield from wrapped(f"ignored: {text}", first=4, rest=6)
    for gang in dict.fromkeys(outcome.gang for outcome in outcomes if outcome.gang is not None):
        yield from wrapped(str(gang), first=0, rest=4)
    served = sum(1 for outcome in outcomes if outcome.node is not None)
    yield f"{served} of {len(outcomes)} claims get their devices"


def _gpus(outcome: Outcome, simulation: Simulation) -> str:
    """Return the ordinals of our GPUs, which is how the tree shows them, and the names of other devices."""
    pool = simulation.inventory.pool(outcome.node) if outcome.node is not None else None
    known: Mapping[tuple[str, str, str | None], int] = {}
    if pool is not None:
        driver = simulation.inventory.driver
        known = {(driver, pool.pool, name): ordinal for ordinal, name in enumerate(pool.devices)}
    shown = (str(known.get((each.driver, each.pool, each.device), each.device)) for each in outcome.devices)
    return ",".join(shown) or "-"
