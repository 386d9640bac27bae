"""Makes the ResourceClaimTemplates that pods name in place of `nvidia.com/gpu`, and deletes those no pod names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from dracaena.api.gpu_templates import GpuTemplate, read_gpu_template
from dracaena.api.objects import Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ResourceClaimTemplate
from dracaena.controller.ports import TemplateApi
from dracaena.kube.errors import AlreadyExistsError, ConflictError, KubeError, NotFoundError
from dracaena.process.clock import Clock

MADE_AGAIN_S: Final = 30.0
"""How long a template that was there is assumed to be there still: pods come by the hundred, and claims are made from
it within a second. One that was deleted meanwhile is made again after this time."""

FOUND_S: Final = 5.0
"""How long a template that was found counts as there: the pods of one Job ask for the same one."""

MISSED_S: Final = 1.0
"""How long a template that was missing counts as missing: all pods of a Job without its template ask at once. Short, so
that a person who then makes the template does not wait for long."""

NAMES_S: Final = 30.0
"""How long names that were read are reused: a hint may be a little old."""

LOOKS: Final = 10
"""Looks for unused templates during the time for which one stays. Each look lists all of our templates."""

log = structlog.get_logger()


class ClaimTemplates:
    """One template for each namespace, count and class. Safe to use from many threads. What it remembers only saves
    writes."""

    def __init__(
        self,
        templates: TemplateApi,
        pods: Callable[[], Iterable[Pod]],
        opted_in: Callable[[str], bool],
        clock: Clock,
        *,
        unused_s: float,
    ) -> None:
        """`pods` returns all pods as the watch shows them, `opted_in` whether a namespace has the label. `unused_s`:
        how long a template that no pod names stays."""
        self.look_every_s: Final = unused_s / LOOKS
        """How often to call collect()."""
        self._stays_s = unused_s
        self._templates = templates
        self._pods = pods
        self._opted_in = opted_in
        self._clock = clock
        self._lock = threading.Lock()
        self._there_s: dict[tuple[str, str], float] = {}  # namespace, name → when it was there
        self._read_s: dict[str, tuple[bool, float]] = {}  # namespace/name → whether it was there, and when
        self._names: dict[str, tuple[Collection[str], float]] = {}  # namespace → names of all there, and when
        self._unused_s: dict[str, float] = {}  # UID → since when no pod names it

    def make_for(self, pod: Pod) -> float | None:
        """Make the templates that a pod waits for, if their names say what is in them; return in how many seconds to
        ask again if it still waits, None when it waits for no such template.

        Nothing is made in a namespace that has not opted in: a user who may create pods there, but neither claims nor
        templates, must not get devices just by naming them. When the namespace opts in, the caller must pass the pod
        here again.

        Raises KubeError when the server does not answer, or denies the request.
        """
        templates = _awaited(pod)
        if not templates or not self._opted_in(pod.metadata.namespace):
            return None
        for template in templates:
            if self._was_there(pod.metadata.namespace, template):
                continue
            try:
                self._templates.create(template, pod.metadata.namespace)
                log.info("template made", namespace=pod.metadata.namespace, template=template.name)
            except AlreadyExistsError:
                pass
            with self._lock:
                self._there_s[pod.metadata.namespace, template.name] = self._clock.monotonic()
                self._read_s.pop(f"{pod.metadata.namespace}/{template.name}", None)
        return MADE_AGAIN_S

    def exists(self, key: str) -> bool:
        """Return whether the template `namespace/name` exists, by any author. Raises KubeError. Cost: one read, at
        most once in FOUND_S for a template that exists, and once in MISSED_S for a missing one.
        """
        namespace, _, name = key.partition("/")
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._read_s.get(key)
        if known is not None and _holds(known, now_s):
            return known[0]
        found = self._templates.exists(namespace, name)
        with self._lock:
            self._read_s = {one: read for one, read in self._read_s.items() if _holds(read, now_s)}
            self._read_s[key] = found, now_s
        return found

    def names(self, namespace: str) -> Collection[str]:
        """Return the names of a namespace's templates, by any author, to find the one that a misspelt name means.
        Raises KubeError. Cost: a list of the namespace, at most once in NAMES_S.
        """
        now_s = self._clock.monotonic()
        with self._lock:
            self._names = {one: read for one, read in self._names.items() if now_s - read[1] < NAMES_S}
            known = self._names.get(namespace)
        if known is not None:
            return known[0]
        names = frozenset(self._templates.names(namespace))
        with self._lock:
            self._names[namespace] = names, now_s
        return names

    def collect(self) -> None:
        """Delete our templates that no pod has named for `unused_s`. Cost: one list, and one step for each pod."""
        now_s = self._clock.monotonic()
        with self._lock:
            self._there_s = {key: at_s for key, at_s in self._there_s.items() if now_s - at_s < MADE_AGAIN_S}
        ours = self._templates.ours()
        used = {
            (pod.metadata.namespace, entry.resource_claim_template_name)
            for pod in self._pods()
            for entry in pod.spec.resource_claims
        }
        unused = [
            one for one in ours if _is_made_by_us(one) and (one.metadata.namespace, one.metadata.name) not in used
        ]
        since = {one.metadata.uid: self._unused_s.get(one.metadata.uid, now_s) for one in unused}
        self._unused_s = since
        for template in unused:
            if now_s - since[template.metadata.uid] < self._stays_s:
                continue
            try:
                self._templates.delete(template)
                with self._lock:
                    self._there_s.pop((template.metadata.namespace, template.metadata.name), None)
                log.info("unused template deleted", namespace=template.metadata.namespace, name=template.metadata.name)
            except (NotFoundError, ConflictError):
                pass  # another client did, and may have made a new one
            except KubeError as error:
                log.warning("unused template not deleted", template=template.key, error=str(error))

    def _was_there(self, namespace: str, template: GpuTemplate) -> bool:
        with self._lock:
            at_s = self._there_s.get((namespace, template.name))
        return at_s is not None and self._clock.monotonic() - at_s < MADE_AGAIN_S


def _holds(read: tuple[bool, float], now_s: float) -> bool:
    """Whether what was read about a template still counts."""
    found, at_s = read
    return now_s - at_s < (FOUND_S if found else MISSED_S)


def _awaited(pod: Pod) -> list[GpuTemplate]:
    """Return the templates that a pod names and has no claims from yet, if their names say what is in them."""
    named = {entry.name: entry.resource_claim_template_name or "" for entry in pod.spec.resource_claims}
    missing = (claim.alias for claim in pod_claims(pod) if claim.generated and claim.name is None)
    return [template for alias in missing if (template := read_gpu_template(named[alias])) is not None]


def _is_made_by_us(template: ResourceClaimTemplate) -> bool:
    """Whether it is what we would make; others may put our label on templates of their own."""
    named = read_gpu_template(template.metadata.name)
    return named is not None and template.spec.spec == named.spec()["spec"]
