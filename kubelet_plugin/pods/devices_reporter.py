"""Reports which pod has which GPU, from the prepared claims: in podlist.json and in annotations on the node's pods.

Kubelet makes no call when a second pod uses a prepared claim, so both follow the pods by watch. Prepare and unprepare
only make sure that podlist.json holds their own change before kubelet gets its answer.

A pod names its claims, but a name proves nothing: it may belong to another claim by now while the old one is still
prepared, or somebody may have bound the pod to this node by hand. So a pod that was not a consumer of the claim when it
was prepared is listed only once the API has shown that the claim is still the same and is reserved for this pod, which
kubelet checks too before it starts a container. That costs one read per claim, in the thread here, never while kubelet
waits. What an earlier run's podlist.json says of such pods still holds after a restart.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter

import structlog

from dracaena.api.errors import BadInputError, DracaenaError, TemporaryError
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid, PodUid
from dracaena.api.objects import Pod
from dracaena.api.podlist import HEARTBEAT_S, PODLIST, PodlistEntry, decode_podlist, join_lines, podlist_line
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.kube.reflector import Backoff
from dracaena.kubelet_plugin.node.context import NodeContext
from dracaena.kubelet_plugin.pods.device_statuses import DeviceStatuses
from dracaena.kubelet_plugin.pods.devices import PodDevices, PodDevicesCache
from dracaena.kubelet_plugin.ports import (
    ClaimGoneError,
    DocumentStore,
    PodAccess,
    PodCache,
    TouchableStore,
)
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.dcgm_job_mapping import is_job_file, job_files
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from dracaena.kubelet_plugin.prepare.reports.podlist import (
    Users,
    has_claims,
    may_run,
    runs_on,
    same_use,
    with_users,
)
from dracaena.kubelet_plugin.store.claims import with_claim
from dracaena.kubelet_plugin.worker import Worker, WorkerService

GATHER_S = 0.05
"""Pause between a change and the reconciliation: the answer to kubelet goes first, and bursts of changes are merged."""

RECONCILE_EVERY_S = HEARTBEAT_S - 10.0
"""Look at all files at least this often: if somebody removes or changes podlist.json, it is right again within a
minute, and 10 s are left for the look itself. Costs one read of each file and no request."""

ASK_AGAIN_S = 60.0
"""How long to believe that a claim is not reserved for a pod that names it. kube-scheduler reserves before it binds, so
regular pods never wait for this; pods bound by hand cost one read per claim and minute."""

log = structlog.get_logger()


class PodDevicesReporter(WorkerService):
    """Follows pods and prepared claims. A separate thread reconciles after each change, with backoff on failure.

    `write_podlist` and `forget` are called with the node's lock held; all other methods take it themselves.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        pods: PodCache,
        access: PodAccess,
        files: TouchableStore,
        statuses: DeviceStatuses | None = None,
        gpu_name_format: GpuNameFormat = GpuNameFormat.UUID,
        job_mapping: DocumentStore | None = None,
    ) -> None:
        """`statuses` and `job_mapping` are None if status.devices or files for dcgm-exporter are not wanted."""
        self._node_name, self._api, self._claims = context.node_name, context.api, context.claims
        self._clock, self._metrics = context.clock, context.metrics
        self._pods, self._access, self._files, self._statuses = pods, access, files, statuses
        clock = context.clock
        self._written: bytes | None = None  # what podlist.json was when this process last looked; under the lock
        self._right_s = clock.monotonic()  # when podlist.json was last seen to be right, at first the start
        context.metrics.publishing.podlist_age.set_function(lambda: clock.monotonic() - self._right_s)
        self._pod_devices = PodDevicesCache(context.driver, gpu_name_format)
        self._job_mapping = job_mapping
        self._followers: list[Callable[[Sequence[PreparedClaim]], None]] = []
        self._backoff = Backoff(random.Random())  # noqa: S311 - jitter, no secret
        self._recover: Callable[[Sequence[Pod]], bool] | None = None
        self._early: dict[PodUid, tuple[Pod, ClaimUid]] = {}  # read for a claim before the watch had shown them
        self._early_lock = threading.Lock()
        self._strangers: dict[tuple[ClaimUid, PodUid], float] = {}  # pods for which a claim was not reserved, and when
        self._users: Users | None = None  # of prepared claims; replaced as a whole, never modified; None: not read yet
        self._users_known = False
        self._when_users_known: list[Callable[[], None]] = []
        self._worker = Worker("assignments", self._run, clock)

    def subscribe(self, follower: Callable[[Sequence[PreparedClaim]], None]) -> None:
        """Have a function called with all prepared claims at each reconciliation, under the lock: it must not block.
        Call this before start().
        """
        self._followers.append(follower)

    def when_users_known(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when `users_known` becomes true. Call this before start(); `tell` must not block."""
        self._when_users_known.append(tell)

    def recover_first(self, recover: Callable[[Sequence[Pod]], bool]) -> None:
        """Have `recover` called with the node's pods, before the first reconciliation of the thread, until it returns
        True. Call this before start().
        """
        self._recover = recover

    def take(self, _machine: Machine) -> None:
        """If claims are still to be recovered, try that again at once: their devices may be known now. Never blocks."""
        if self._recover is not None:
            self._worker.hurry()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a change that the watch reported; pods without claims are ignored.

        So is our own write when it comes back: looking at all files then would delay the next call. The cache already
        holds the pod as it is now, so later decisions about its annotations see it.
        """
        if not any(pod is not None and has_claims(pod) for pod in (old, new)):
            return
        if old is not None and new is not None and same_use(old, new) and self._pod_devices.are_told(new):
            return
        self.changed()

    def learn_consumers(self, claim: ResourceClaim) -> Sequence[Pod]:
        """Return the pods for which a claim is reserved, sorted by name. Reads those that the watch has not shown yet;
        one that cannot be read is left to the watch.
        """
        found: list[Pod] = []
        for consumer in claim.status.reserved_for:
            known = self._pods.get(f"{claim.metadata.namespace}/{consumer.name}")
            if known is not None and known.metadata.uid == consumer.uid:
                found.append(known)
                continue
            try:
                pod = self._consumer(claim, consumer)
            except TemporaryError as error:
                log.warning("pod of the claim not read, waiting for the watch", pod=consumer.name, error=str(error))
                continue
            if pod is not None:
                found.append(pod)
                with self._early_lock:
                    self._early[PodUid(consumer.uid)] = (pod, ClaimUid(claim.metadata.uid))
        return sorted(found, key=attrgetter("metadata.name"))

    def _consumer(self, claim: ResourceClaim, consumer: ConsumerReference) -> Pod | None:
        """Read the pod that a claim is reserved for; None if it is no pod of this node. Raises TemporaryError."""
        if consumer.resource != "pods":
            return None
        pod = self._access.read_pod(claim.metadata.namespace, consumer.name)
        is_it = pod is not None and pod.metadata.uid == consumer.uid and pod.spec.node_name == self._node_name
        return pod if is_it else None

    def in_use(self, prepared: PreparedClaim) -> bool:
        """Whether a pod that has not ended and is not being deleted uses the claim, as the watch last reported."""
        return any(runs_on(pod) for pod in self.users_of(prepared))

    def may_be_in_use(self, prepared: PreparedClaim) -> bool:
        """The same, counting pods that are being deleted: their containers may still run."""
        return any(may_run(pod) for pod in self.users_of(prepared))

    @property
    def users_known(self) -> bool:
        """Whether all pods of the node have been checked once since the start: until then users_of() may lack some."""
        return self._users_known

    def users_of(self, prepared: PreparedClaim) -> Sequence[Pod]:
        """Return the pods that use a prepared claim, including those that ended, as the watch last reported them."""
        # Without the lock this sees at worst the users of a moment ago.
        users = with_users(prepared, self._users or {}).consumers
        return [pod for pod in self._pods.values() if pod.metadata.uid in users]

    def users_now(self, prepared: PreparedClaim) -> Sequence[Pod]:
        """Return the same, plus the pods for which the API has reserved the claim and that the watch has not shown yet.

        kubelet starts no container before its pod is among these, so all pods are included that had the claim's devices
        before the call. Reads the claim, and each unknown pod, so the caller must not hold the lock. Raises
        TemporaryError if the API does not answer.
        """
        users = self.users_of(prepared)
        try:
            claim = self._api.read_claim(prepared.claim)
        except ClaimGoneError:
            return users
        known = {pod.metadata.uid for pod in users}
        more = [self._consumer(claim, c) for c in claim.status.reserved_for if c.uid not in known]
        return [*users, *(pod for pod in more if pod is not None)]

    def write_podlist(self, *, including: PreparedClaim | None = None, without: ClaimUid | None = None) -> None:
        """Bring podlist.json up to date: all prepared claims, plus one that is not done yet, or minus one.

        Does not write the file if it is the same. Raises DracaenaError if it cannot be written.
        """
        prepared = self._prepared()
        if including is not None:
            prepared = with_claim(prepared, including.claim.uid, with_users(including, self._users_so_far()))
        if without is not None:
            prepared = with_claim(prepared, without, None)
        self._write_podlist(prepared, without)

    def _write_podlist(self, prepared: Sequence[PreparedClaim], without: ClaimUid | None) -> tuple[PodDevices, ...]:
        pod_devices = self._pod_devices.of(self._known_pods(), prepared)
        lines = [*chain.from_iterable(map(attrgetter("lines"), pod_devices))]  # of hundreds of pods: not in Python
        if not self._pods.synced:
            # Right after a restart not all pods are known: for the others, what the last run wrote still holds.
            ours = {order for order, _ in lines}
            lines += [podlist_line(e) for e in self._last_written(without) if e.order not in ours]
        data, written = join_lines(lines), self._written
        self._written = None  # in case that it cannot be written
        if written is not None and written != data:
            self._files.write(PODLIST, data)  # without a look at what is about to be replaced in any case
        elif self._files.write_if_changed(PODLIST, data):
            log.debug("podlist written", containers=len(lines))
        self._written = data
        self._right_s = self._clock.monotonic()
        return pod_devices

    def forget(self, uid: ClaimUid) -> None:
        """Remove a claim from podlist.json. If the file cannot be written now, the claim goes anyway and we retry."""
        with self._early_lock:
            self._early = {pod: early for pod, early in self._early.items() if early[1] != uid}
        try:
            self.write_podlist(without=uid)
        except DracaenaError as error:
            log.warning("podlist not written, retrying", error=str(error))
            self.changed()

    def reconcile(self) -> None:
        """Bring podlist.json and all annotations up to date once. Tries all, then raises the first DracaenaError."""
        prepared, pod_devices, failures = self._write_files()
        learned, more_failures = self._learn_users(prepared, pod_devices)
        failures += more_failures
        if self._pods.synced and not more_failures:
            self._note_users_known()
        if learned:
            prepared, pod_devices, more_failures = self._write_files()
            failures += more_failures
        if self._statuses is not None:
            failures += self._statuses.reconcile(prepared)
        for each in pod_devices:
            if not each.changes:
                continue
            try:
                self._access.annotate_pod(each.pod, each.changes)
            except TemporaryError as error:
                self._metrics.publishing.annotation_errors.inc()
                failures.append(error)
        if failures:
            raise failures[0]

    def _note_users_known(self) -> None:
        if not self._users_known:
            self._users_known = True
            for tell in self._when_users_known:
                tell()

    def _write_files(self) -> tuple[Sequence[PreparedClaim], tuple[PodDevices, ...], list[DracaenaError]]:
        """Write podlist.json and the job mapping; return their content, and the errors of parts that no pod needs.

        The heartbeat is updated here and not in each call of kubelet: it shows that all pods are followed.
        """
        with self._claims.hold():
            self._forget_users()
            prepared = self._prepared()
            for follower in self._followers:
                follower(prepared)
            self._metrics.claims.prepared.set(len(prepared))
            self._metrics.claims.devices.set(len({device.device for p in prepared for device in p.devices}))
            pod_devices = self._write_podlist(prepared, None)
            failures: list[DracaenaError] = []
            for write in (partial(self._files.touch, PODLIST), partial(self._write_job_mapping, prepared)):
                try:
                    write()
                except DracaenaError as error:
                    failures.append(error)
            return prepared, pod_devices, failures

    def _write_job_mapping(self, prepared: Sequence[PreparedClaim]) -> None:
        """Bring the files for dcgm-exporter up to date. Called with the node's lock held.

        A GPU that nobody has any more keeps an empty file: the exporter lists the folder before it reads the files, and
        one that disappears in between makes it drop all its metrics.
        """
        if self._job_mapping is None or not self._pods.synced:
            return  # right after a restart what the last run wrote still holds
        wanted = job_files(self._known_pods(), prepared)
        empty = {name: b"" for name in self._job_mapping.names("") if is_job_file(name)}
        for name, data in {**empty, **wanted}.items():
            self._job_mapping.write_if_changed(name, data)

    def _learn_users(
        self, prepared: Sequence[PreparedClaim], pod_devices: Sequence[PodDevices]
    ) -> tuple[bool, list[DracaenaError]]:
        """Check pods that name a prepared claim and were not among its consumers.

        Returns whether there are new users, and the errors where that remains unknown. Takes the pods from before the
        claims are read: a pod that comes later may mean a later claim.
        """
        unknown = self._unknown_users(pod_devices)
        found: dict[ClaimUid, set[PodUid]] = {}
        failures: list[DracaenaError] = []
        for claim in (p.claim for p in prepared if p.claim.uid in unknown):
            asked = unknown[claim.uid]
            try:
                mine = asked & _consumers(self._api.read_claim(claim))
            except ClaimGoneError:
                mine = set()
            except DracaenaError as error:
                failures.append(error)
                continue
            if mine:
                found[claim.uid] = mine
            if strangers := asked - mine:
                log.debug(
                    "pods for which the claim is not reserved are not listed", claim=str(claim), pods=sorted(strangers)
                )
                now_s = self._clock.monotonic()
                self._strangers.update({(claim.uid, pod): now_s for pod in strangers})
        if found:
            with self._claims.hold():
                seen = self._users_so_far()
                self._users = {**seen, **{uid: seen.get(uid, frozenset()) | pods for uid, pods in found.items()}}
        return bool(found), failures

    def _unknown_users(self, pod_devices: Sequence[PodDevices]) -> Mapping[ClaimUid, set[PodUid]]:
        """Return the pods to check, by the claim that they name, without those that were refused recently."""
        since_s = self._clock.monotonic() - ASK_AGAIN_S
        self._strangers = {who: at_s for who, at_s in self._strangers.items() if at_s > since_s}
        unknown: dict[ClaimUid, set[PodUid]] = {}
        for each in pod_devices:
            pod = PodUid(each.pod.metadata.uid)
            for uid in each.unknown:
                if (uid, pod) not in self._strangers:
                    unknown.setdefault(uid, set()).add(pod)
        return unknown

    def _forget_users(self) -> None:
        """Drop claims that are no longer prepared, and pods that are gone. Called with the node's lock held."""
        seen = self._users_so_far()
        if not seen:
            return
        claims = {p.claim.uid for p in self._claims.prepared()}
        pods = {PodUid(pod.metadata.uid) for pod in self._known_pods()}
        users = {uid: of & pods for uid, of in seen.items() if uid in claims}
        self._users = {uid: of for uid, of in users.items() if of}

    def _prepared(self) -> tuple[PreparedClaim, ...]:
        """Return the prepared claims with all pods that are known to use them, sorted by claim UID."""
        users, prepared = self._users_so_far(), self._claims.prepared()
        return tuple([with_users(p, users) if p.claim.uid in users else p for p in prepared]) if users else prepared

    def _users_so_far(self) -> Users:
        """Return who is known to use which claim. Called with the node's lock held, like everything that changes it."""
        if self._users is None:
            users: dict[ClaimUid, set[PodUid]] = {}
            for entry in self._last_written(None):
                for uid in entry.claims:
                    users.setdefault(ClaimUid(uid), set()).add(PodUid(entry.uid))
            self._users = {uid: frozenset(pods) for uid, pods in users.items()}
        return self._users

    def _known_pods(self) -> tuple[Pod, ...]:
        """Return the pods of the watch, and those that were read for a claim and that the watch has not shown yet."""
        seen = self._pods.values()
        with self._early_lock:
            if not self._early:
                return seen
            keys = {pod.key for pod in seen}
            # A pod of that name in the watch is the same one or its successor: either way ours is no longer needed.
            self._early = {uid: early for uid, early in self._early.items() if early[0].key not in keys}
            return (*seen, *(self._early[uid][0] for uid in sorted(self._early)))

    def _last_written(self, without: ClaimUid | None) -> tuple[PodlistEntry, ...]:
        data = self._files.read(PODLIST)
        if data is None:
            return ()
        try:
            return tuple(entry for entry in decode_podlist(data) if without not in entry.claims)
        except BadInputError as error:
            log.warning("podlist of the last run is broken, rewriting it", error=str(error))
            return ()

    def _run(self) -> None:
        # The cache's sync shows through a change, but a node without pods has none: look again every second.
        while self._worker.wait(lambda: self._pods.synced, within_s=RECONCILE_EVERY_S, look_every_s=1.0):
            if not self._pods.synced:
                continue
            if not (self._worker.pause(GATHER_S) and self._worker.wait(within_s=0.0)):
                return
            try:
                if self._recover is not None and self._recover(self._pods.values()):
                    self._recover = None
                self.reconcile()
                if self._recover is not None:
                    raise TemporaryError("a claim could not be recovered yet")
                self._backoff.reset()
            except DracaenaError as error:
                log.warning("assignments not up to date, retrying", error=str(error))
                self._worker.again(self._backoff.next_s())
            except Exception:
                # The thread's outermost loop: a bug must not end the monitoring of this node.
                log.exception("assignments failed")
                self._worker.again(self._backoff.next_s())


def _consumers(claim: ResourceClaim) -> set[PodUid]:
    """Return the pods for which a claim is reserved."""
    return {PodUid(consumer.uid) for consumer in claim.status.reserved_for if consumer.resource == "pods"}
