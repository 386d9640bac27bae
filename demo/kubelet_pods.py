"""The pod side of the kubelet stand-in: prepare claims, run the pod, unprepare, remove the pod."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from dracaena.api.errors import TemporaryError
from dracaena.api.objects import ENDED, Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ResourceClaim
from dracaena.demo.container_runtime import UnresolvableDevicesError, resolve
from dracaena.demo.kubelet_claims import ClaimInfo, ClaimState, PluginDevice
from dracaena.demo.objects import PodDocument
from dracaena.demo.pod_claims import is_reserved_for
from dracaena.demo.pod_status import ended_status, lasts_s, running_status
from dracaena.demo.reconcile import RETRY_S, CachedStandIn, settle
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ConflictError, KubeError
from dracaena.process.clock import Clock, rfc3339

log = structlog.get_logger()


class ClaimNotReadyError(TemporaryError):
    """A claim is not ready to be used on this node, or a plugin could not prepare or unprepare it."""


class DraPlugins(Protocol):
    """The DRA drivers that are registered on this node."""

    def require(self, driver: str) -> None:
        """Raise ClaimNotReadyError when no instance of the driver is registered."""
        ...

    def prepare(self, driver: str, claims: Sequence[ClaimInfo]) -> Mapping[str, tuple[PluginDevice, ...] | str]:
        """Return for each claim UID the devices or the error text. Raises ClaimNotReadyError when the whole call
        failed."""
        ...

    def unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> Mapping[str, str]:
        """Return for each claim UID the error text, empty for success. Raises ClaimNotReadyError as prepare()."""
        ...


class PodRunner(CachedStandIn):
    """Follows the pods of one node between start() and stop()."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        node_name: str,
        kubelet_root: Path,
        cdi_root: Path,
        plugins: DraPlugins,
        retry_s: float,
    ) -> None:
        super().__init__(f"kubelet {node_name}", client, clock, events_as="kubelet")
        self._cdi_root = cdi_root
        self._plugins = plugins
        self._retry_s = retry_s
        self._state = ClaimState(kubelet_root)
        self._pods = self._cache(Pod, field_selector=f"spec.nodeName={node_name}")
        self._running: set[str] = set()  # UIDs of pods that this process has started
        self._retry_at_s: dict[str, float] = {}  # UID of a pod whose start failed → steady time of the next try
        self._retry_now = threading.Event()
        self._ends_at_s: dict[str, float] = {}  # UID of a pod that ends by itself → steady time of its end

    def wake(self) -> None:
        """Look again at once, because a plugin came or went. Safe from any thread: only the loop touches its tables."""
        self._retry_now.set()
        self._loop.wake()

    def _reconcile(self) -> float | None:
        if self._retry_now.is_set():
            self._retry_now.clear()
            self._retry_at_s.clear()
        pods = self._pods.values()
        active = {pod.metadata.uid: pod for pod in pods if _is_active(pod)}
        self._running &= active.keys()
        self._retry_at_s = {uid: at_s for uid, at_s in self._retry_at_s.items() if uid in active}
        self._ends_at_s = {uid: at_s for uid, at_s in self._ends_at_s.items() if uid in active}
        started = settle(active.values(), self._start_pod, "pod")
        finished = settle([active[uid] for uid in self._due()], self._finish_pod, "pod")
        released = self._release(active.keys())
        ended = settle([pod for pod in pods if pod.metadata.deletion_timestamp is not None], self._end_pod, "pod")
        times_s = (*self._retry_at_s.values(), *self._ends_at_s.values())
        waits = [max(0.0, at_s - self._clock.monotonic()) for at_s in times_s]
        if not (started and ended and finished):
            waits.append(RETRY_S)
        if not released:
            waits.append(self._retry_s)
        return min(waits, default=None)

    # start

    def _start_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid in self._running:
            return
        if pod.status.phase == "Running":
            self._adopt(pod)
            return
        if self._retry_at_s.get(uid, 0.0) > self._clock.monotonic():
            return
        try:
            self._check_containers(pod, self._prepare(pod))
        except ClaimNotReadyError as error:
            self._fail(pod, "FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {error}")
        except UnresolvableDevicesError as error:
            self._fail(pod, "Failed", f"Error: CDI device injection failed: {error}")
        else:
            self._retry_at_s.pop(uid, None)
            self._report_running(pod)
            self._running.add(uid)

    def _fail(self, pod: Pod, reason: str, message: str) -> None:
        self._events.record(pod, "Warning", reason, message)
        self._retry_at_s[pod.metadata.uid] = self._clock.monotonic() + self._retry_s

    def _prepare(self, pod: Pod) -> dict[str, ClaimInfo]:
        """Return the pod's claims by the name of their entry in the pod, all prepared."""
        infos = {one.alias: self._claim_info(pod, one.name) for one in pod_claims(pod)}
        drivers = sorted({driver for info in infos.values() for driver in info.drivers})
        for driver in drivers:
            self._plugins.require(driver)
        self._state.put(*infos.values())
        waiting = sorted({info.uid for info in infos.values() if info.devices is None})
        devices: dict[str, list[PluginDevice]] = {uid: [] for uid in waiting}
        for driver in drivers:
            asked = [info for uid in waiting if (info := self._state.get(uid)) is not None and driver in info.drivers]
            for uid, answer in (self._plugins.prepare(driver, asked) if asked else {}).items():
                if isinstance(answer, str):
                    claim = next(info for info in asked if info.uid == uid)
                    raise ClaimNotReadyError(f"{driver}: claim {claim.namespace}/{claim.name}: {answer}")
                devices[uid].extend(answer)
        for name, info in infos.items():
            if info.uid in devices:
                infos[name] = msgspec.structs.replace(info, devices=tuple(devices[info.uid]))
        self._state.put(*infos.values())
        return infos

    def _claim_info(self, pod: Pod, name: str | None) -> ClaimInfo:
        if name is None:
            raise ClaimNotReadyError("a claim of the pod is not created yet")
        namespace = pod.metadata.namespace
        try:
            claim = self._client.get(ResourceClaim, name, namespace=namespace)
        except KubeError as error:
            raise ClaimNotReadyError(str(error)) from error
        if not is_reserved_for(claim, pod):
            raise ClaimNotReadyError(
                f"pod {pod.metadata.name} is not allowed to use resource claim {name}: not reserved"
            )
        if claim.status.allocation is None:
            raise ClaimNotReadyError(f"resource claim {name} is not allocated")
        known = self._state.get(claim.metadata.uid)
        if known is None:
            drivers = sorted({result.driver for result in claim.status.allocation.devices.results})
            known = ClaimInfo(claim.metadata.uid, namespace, name, tuple(drivers), ())
        return known.with_pod(pod.metadata.uid)

    def _check_containers(self, pod: Pod, infos: Mapping[str, ClaimInfo]) -> None:
        """Have the runtime find the devices of each container."""
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            ids = [
                device_id
                for use in container.resources.claims
                for device in infos[use.name].devices or ()
                if not use.request or not device.request_names or use.request in device.request_names
                for device_id in device.cdi_device_ids
            ]
            resolve(self._cdi_root, ids)

    def _report_running(self, pod: Pod) -> None:
        document = self._document(pod)
        self._patch_status(document, running_status(document.spec, document.status, rfc3339(self._clock.now())))
        self._note_end(pod, document.spec)
        for container in pod.spec.containers:
            self._events.record(pod, "Normal", "Started", f"Started container {container.name}")

    def _adopt(self, pod: Pod) -> None:
        """Take over a pod that ran before this process did."""
        self._note_end(pod, self._document(pod).spec)
        self._running.add(pod.metadata.uid)

    # end

    def _note_end(self, pod: Pod, spec: dict[str, Any]) -> None:
        run_s = lasts_s(spec, of_job=any(owner.kind == "Job" for owner in pod.metadata.owner_references))
        if run_s is not None:
            self._ends_at_s[pod.metadata.uid] = self._clock.monotonic() + run_s

    def _due(self) -> list[str]:
        return [uid for uid, at_s in self._ends_at_s.items() if at_s <= self._clock.monotonic()]

    def _finish_pod(self, pod: Pod) -> None:
        """Report the end of a pod that ends by itself; its claims are released with the next look."""
        document = self._document(pod)
        self._patch_status(document, ended_status(document.spec, document.status, rfc3339(self._clock.now())))
        self._ends_at_s.pop(pod.metadata.uid, None)

    def _document(self, pod: Pod) -> PodDocument:
        """Read all of a pod. Raises ConflictError if another one has its name."""
        meta = pod.metadata
        document = self._client.get(PodDocument, meta.name, namespace=meta.namespace)
        if document.metadata.uid != meta.uid:
            raise ConflictError(f"GET {pod.key}", HTTPStatus.CONFLICT, "Conflict", "it is another pod of this name")
        return document

    def _release(self, active: Iterable[str]) -> bool:
        """Unprepare the claims that no active pod uses; return whether all could be."""
        active = set(active)
        done = True
        for info in self._state.values():
            kept = info.kept_for(active)
            if kept.pod_uids:
                if kept != info:
                    self._state.put(kept)
                continue
            try:
                self._unprepare(info)
            except ClaimNotReadyError as error:
                log.warning("unprepare failed, again soon", claim=f"{info.namespace}/{info.name}", error=str(error))
                done = False
        return done

    def _unprepare(self, info: ClaimInfo) -> None:
        for driver in info.drivers:
            self._plugins.require(driver)
            error = self._plugins.unprepare(driver, [info])[info.uid]
            if error:
                raise ClaimNotReadyError(f"{driver}: {error}")
        self._state.remove(info.uid)

    def _end_pod(self, pod: Pod) -> None:
        """Take the pod out of the API once none of its claims is prepared any more."""
        if not any(pod.metadata.uid in info.pod_uids for info in self._state.values()):
            self._delete(pod, grace_period_s=0)


def _is_active(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in ENDED
