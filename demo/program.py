"""`dracaena demo`: Dracaena's main job in a minute, on recordings of real machines.

It starts the embedded cluster, applies manifests, and shows what happens by reading it back from the API and from the
nodes' folders. What it says is verified; it exits with 1 if something does not hold.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dracaena.api.decision import Decision, decision_parameters, read_decision
from dracaena.api.errors import BadInputError, DracaenaError
from dracaena.api.names import (
    DEFAULT_DRIVER_NAME,
    decision_driver,
    devices_annotation,
    uuids_annotation,
)
from dracaena.demo import verify
from dracaena.demo.cluster import ClusterError, DemoCluster, short_folder
from dracaena.demo.observation import Observation, ObservedNode, ObservedPod, observe
from dracaena.demo.scenario import NODES, WAITING, ManifestFile, apply, delete_pods, load_manifests
from dracaena.demo.view import View
from dracaena.process.clock import SystemClock
from dracaena.process.logs import configure_logs

SETTLE_TIMEOUT_S = 40.0
"""Time for all pods to reach their final state: about 3 s on two free cores, the rest is for a loaded machine."""

SHOWN_POD = "train"
"""The pod whose annotations are shown in full: it asks for enough GPUs to make the choice interesting."""

SHARING_PODS, SLICE_PODS = '"name":"share-', '"name":"slice-'
"""What identifies the lines of podlist.json about pods with a share of a GPU, and with a slice of one."""

LOGS = "logs"
"""Folder of the logs, in the cluster's folder."""


def run(*, keep: bool, plain: bool, kubernetes: str) -> int:
    """Show the demo; return 0 if everything that it says holds, 1 otherwise.

    `keep` leaves pods and cluster running until Ctrl-C. `plain` prints lines only, whatever standard output is.
    `kubernetes`: the version that the API server answers as.
    """
    clock = SystemClock()
    began_s = clock.monotonic()
    view = View(plain=plain, elapsed_s=lambda: clock.monotonic() - began_s)
    _end_in_order_on_signals()
    view.title(
        "Dracaena: a pod asks for 4 GPUs and gets the 4 best-linked ones.",
        "Real: controller, kubelet plugins, gRPC and HTTP between them, every file. Recorded: the GPUs.",
        "Stand-ins: API server, kube-scheduler, kube-controller-manager, kubelet. Containers do not run.",
    )
    logs: Path | None = None
    try:
        with short_folder(kept_after_error=LOGS) as root, _logs_in(root):
            logs = root / LOGS
            with DemoCluster(NODES, root=root, kubernetes=kubernetes) as cluster:
                try:
                    holds = Demo(cluster, view).show(keep=keep)
                except ClusterError:
                    _quote_logs(view, cluster)
                    raise
            if holds:
                view.success(f"All of it holds. Done in {clock.monotonic() - began_s:.0f} s.")
            return 0 if holds else 1
    except DracaenaError as error:
        view.error(f"The demo stopped: {error}")
        if logs is not None:
            view.error(f"Everything else is removed; the logs stay in {logs}.")
        return 1
    except KeyboardInterrupt:
        view.note("Interrupted: everything is stopped and removed.")
        return 130  # 128 + SIGINT


END_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Requests to end, a closed terminal, and Ctrl-\\. Ctrl-C is handled separately."""


def _end_in_order_on_signals() -> None:
    """Make every request to end remove what was started. Only SIGKILL leaves the folder behind."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
    for number in END_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup: the terminal may go
            signal.signal(number, _leave)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    # A terminal that closes sends more than one: the second must not interrupt what the first began.
    for other in END_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)  # as a shell reports it


@contextmanager
def _logs_in(root: Path) -> Iterator[None]:
    """Send the stand-ins' log lines to a file, so that they do not disturb the tables."""
    (root / LOGS).mkdir(exist_ok=True)
    with (root / LOGS / "stand-ins.log").open("a", encoding="utf-8") as log:
        configure_logs("info", "json", log)
        try:
            yield
        finally:
            configure_logs("warning", "text")


def _quote_logs(view: View, cluster: DemoCluster) -> None:
    for program in cluster.programs:
        view.error(f"Last lines of {program.name}:")
        view.text(program.log_tail())


class Demo:
    """The parts of the show, in their order."""

    def __init__(self, cluster: DemoCluster, view: View) -> None:
        self._cluster = cluster
        self._view = view

    def show(self, *, keep: bool) -> bool:
        """Run all parts; return whether everything that was shown holds."""
        empty = self._nodes()
        full = self._load(load_manifests())
        promises = verify.promises(full, self._cluster.folders, WAITING)
        self._reasons(full)
        self._trees(empty, full)
        self._shares(full)
        self._slices(full)
        self._files(full)
        if keep:
            holds = self._checks(promises)
            self._keep()
            return holds
        promises.append(
            ("afterwards no claim, file, MIG device or entry was left, and all GPUs were free", self._free(full))
        )
        return self._checks(promises)

    # parts

    def _nodes(self) -> Observation:
        view = self._view
        view.section("Five nodes publish their GPUs and how they are linked")
        observation = observe(self._cluster.client)
        view.nodes(observation.nodes, {node.name: node.machine for node in self._cluster.nodes})
        view.note("NV#: NVLinks of a pair. PCIe levels from near to far: PIX, PXB, PHB, NODE, SYS.")
        return observation

    def _load(self, manifests: Sequence[ManifestFile]) -> Observation:
        view, cluster = self._view, self._cluster
        view.section("Apply a DeviceClass and pods, each with a ResourceClaimTemplate")
        view.manifests([(manifest.file, manifest.comment) for manifest in manifests])
        view.section("The controller allocates, the scheduler binds, kubelet and plugin prepare")
        settled = verify.settled(cluster, WAITING)
        latest: list[Observation] = []
        with view.following() as follow:

            def missing() -> str | None:
                observation = _ordered(observe(cluster.client), manifests)
                follow(observation)
                latest[:] = [observation]
                return settled(observation)

            for manifest in manifests:
                apply(cluster.client, [manifest])
                # One after another: pods that wait together are served in the order of the controller's queue, so
                # what each gets would differ from run to run.
                cluster.wait(
                    f"an answer to {manifest.file}", lambda: missing() and latest[0].unanswered(), SETTLE_TIMEOUT_S
                )
            cluster.wait("all pods to get what they ask for", missing, SETTLE_TIMEOUT_S)
        view.pods(latest[0].pods)
        return latest[0]

    def _reasons(self, full: Observation) -> None:
        view = self._view
        view.section("Why these GPUs, and why not")
        entry = decision_driver(DEFAULT_DRIVER_NAME)
        view.note(f"From the entry for {entry} in the allocation of each claim:")
        view.decisions([(pod.name, decision) for pod in full.pods if (decision := _decision(pod)) is not None])
        view.note("Nodes: what the pod gains there minus what others would lose, share of the ideal, the fuller one.")
        view.note("Sets of one node: bandwidth, slowest hop of the ring, damage to what stays free, worst pair, …;")
        view.note("ordinals: equal in all of these, so the fixed order decides.")
        shown = full.pod(SHOWN_POD)
        for claim in shown.claims if shown else ():
            parameters = decision_parameters(claim, DEFAULT_DRIVER_NAME)
            view.document(f"All of it for pod {SHOWN_POD}:", bytes(parameters or b"{}").decode())
        view.note("From the Events of the pods that wait:")
        view.events(
            [
                (pod.name, event.source.component, event.reason, event.message)
                for pod in full.pods
                if pod.name in WAITING
                for event in full.events_of(pod)
            ]
        )

    def _trees(self, empty: Observation, full: Observation) -> None:
        view = self._view
        name = _fullest(full).name
        view.section(f"The tree of {name} before and after, decoded from its ResourceSlices")
        for heading, observation in (("before", empty), ("after", full)):
            node = observation.node(name)
            if node is not None:
                view.tree(heading, node)
        view.note("assumed: the recording hides the PCIe level behind NV#, so NUMA nodes join these GPUs.")

    def _shares(self, full: Observation) -> None:
        """Show the shared GPUs, and what podlist.json says about the pods that have them."""
        view, root = self._view, self._cluster.root
        view.section("Two pods share a GPU: each has a claim of its own, for a part of memory and cores")
        for node in (node for node in full.nodes if node.shares):
            for ordinal in sorted(node.shares):
                view.text(f"{node.name}: GPU{node.machine.gpus[ordinal].index} [{node.label(ordinal)}]")
            podlist = self._cluster.folders[node.name].podlist
            sharing = [line for line in podlist.read_text(encoding="utf-8").splitlines() if SHARING_PODS in line]
            view.document(f"Their lines of {view.path(podlist, root)}", "\n".join(sharing))
        view.note(
            "Nothing enforces the shares here. On GPUs MPS does, with strategy MPS in the claim: docs/sharing.md."
        )

    def _slices(self, full: Observation) -> None:
        """Draw the divided GPUs, and show what a pod that runs on a slice has."""
        view, root, folders = self._view, self._cluster.root, self._cluster.folders
        view.section("A GPU is divided into slices: each is created for its pod, and destroyed when the pod ends")
        for node in (node for node in full.nodes if node.parts):
            view.tree(node.name, node)
            podlist = folders[node.name].podlist
            lines = [line for line in podlist.read_text(encoding="utf-8").splitlines() if SLICE_PODS in line]
            view.document(f"Their lines of {view.path(podlist, root)}", "\n".join(lines))
            for part in node.parts[:1]:
                (uid,) = {c.metadata.uid for pod in full.pods if pod.name in part.holders for c in pod.claims}
                for path in sorted(folders[node.name].cdi_root.glob(f"*{uid}*")):
                    text = path.read_text(encoding="utf-8")
                    view.document(f"CDI spec of pod {part.holders[0]}: {view.path(path, root)}", text)
        view.note("Real: the steps of the plugin and its journal. The driver's part is a file here: docs/mig.md.")

    def _files(self, full: Observation) -> None:
        """Show the shortest CDI spec, the podlist with the most pods, and the annotations of one pod."""
        view, root, folders = self._view, self._cluster.root, self._cluster.folders
        view.section("What the nodes keep on disk, and what a pod carries")
        placed = [pod for pod in full.pods if pod.ordinals and not pod.amounts]
        smallest = min(placed, key=lambda pod: (len(pod.ordinals), pod.name))
        for path in sorted(folders[smallest.node].cdi_root.glob(f"*{smallest.claims[0].metadata.uid}*")):
            view.document(f"CDI spec of pod {smallest.name}: {view.path(path, root)}", path.read_text(encoding="utf-8"))
        podlist = folders[_fullest(full).name].podlist
        view.document(f"For monitoring: {view.path(podlist, root)}", podlist.read_text(encoding="utf-8"))
        carrier = next((pod for pod in placed if pod.name == SHOWN_POD), smallest)
        for key in (devices_annotation(DEFAULT_DRIVER_NAME), uuids_annotation(DEFAULT_DRIVER_NAME)):
            view.document(f"Annotation {key} of pod {carrier.name}", carrier.pod.metadata.annotations[key])

    def _free(self, full: Observation) -> verify.Problems:
        view, cluster = self._view, self._cluster
        view.section("Delete all pods: every GPU is free again")
        delete_pods(cluster.client)
        latest: list[Observation] = []

        def missing() -> str | None:
            latest[:] = [observe(cluster.client)]
            return next(iter(verify.all_free(latest[0], cluster.folders)), None)

        cluster.wait("everything to be free again", missing, SETTLE_TIMEOUT_S)
        view.free_counts(full.nodes, latest[0].nodes)
        return verify.all_free(latest[0], cluster.folders)

    def _checks(self, rows: Sequence[tuple[str, verify.Problems]]) -> bool:
        self._view.section("Checked")
        self._view.checks(rows)
        return not any(problems for _, problems in rows)

    def _keep(self) -> None:
        """Say how to reach the cluster, and leave it running until Ctrl-C."""
        # A handler that only sets a flag cannot lose the signal, wherever the program is at that moment.
        interrupted: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _frame: interrupted.append(number))
        try:
            self._tell_how_to_reach()
            never = threading.Event()
            while not interrupted:
                self._cluster.check()
                never.wait(0.5)  # seconds between two checks whether a program has ended
        finally:
            signal.signal(signal.SIGINT, before)
        self._view.note("Ended by Ctrl-C: everything is stopped and removed.")

    def _tell_how_to_reach(self) -> None:
        view, cluster = self._view, self._cluster
        view.section("It keeps running until Ctrl-C")
        view.text(f"export KUBECONFIG={cluster.kubeconfig}")
        view.text(f"The controller's page, for a browser: {cluster.page_url()}")
        own = Path(sys.executable).with_name("dracaena")  # may not be on PATH: `make demo` has its own environment
        for line in OWN_COMMANDS:
            view.text(f"{own} {line}")
        for line in KEEP_COMMANDS:
            view.text(line)
        view.note("These work: get, describe, apply, delete, label, annotate, patch, cordon; more in docs/demo.md.")
        view.note("The embedded server refuses what it does not serve (exec, logs, other kinds), and names it.")
        view.note(f"Logs and the nodes' files are in {cluster.root}.")


OWN_COMMANDS = ("status", "explain pod train", "explain pod too-big")
"""Commands of `dracaena` that are worth trying on such a cluster."""

KEEP_COMMANDS = (
    "kubectl get pods -o wide",
    "kubectl get resourceclaims,resourceslices",
    "kubectl describe pod train",
    "kubectl delete pod train",
    "kubectl apply -f deploy/examples/one-gpu/pod.yaml",
)
"""Commands of a stock kubectl that the embedded API server serves."""


def _ordered(observation: Observation, manifests: Sequence[ManifestFile]) -> Observation:
    """Return the observation with its pods in the order of the manifests."""
    names = [document["metadata"]["name"] for manifest in manifests for document in manifest.documents]
    return replace(observation, pods=tuple(sorted(observation.pods, key=lambda pod: names.index(pod.name))))


def _decision(pod: ObservedPod) -> Decision | None:
    """Return the decision on a pod's first claim; one that cannot be read is not shown."""
    for claim in pod.claims:
        try:
            decision = read_decision(claim, DEFAULT_DRIVER_NAME)
        except BadInputError:
            return None
        if decision is not None:
            return decision
    return None


def _fullest(observation: Observation) -> ObservedNode:
    """Return the node whose GPUs are held by the most claims: it has the most to show."""
    return max(
        observation.nodes,
        key=lambda node: (len({name for names in node.holders.values() for name in names}), node.name),
    )
