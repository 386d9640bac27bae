"""Where objects contain pods, or templates of the pods that they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dracaena.validation.findings import Path

_EACH: Final = "*"
"""A step to each item of a list."""
_SPEC_TEMPLATE: Final = (("spec", "template"),)
_PLACES: Final[Mapping[tuple[str, str], Sequence[tuple[str, ...]]]] = {
    ("", "Pod"): ((),),
    ("", "PodTemplate"): (("template",),),
    ("", "ReplicationController"): _SPEC_TEMPLATE,
    ("apps", "DaemonSet"): _SPEC_TEMPLATE,
    ("apps", "Deployment"): _SPEC_TEMPLATE,
    ("apps", "ReplicaSet"): _SPEC_TEMPLATE,
    ("apps", "StatefulSet"): _SPEC_TEMPLATE,
    ("batch", "CronJob"): (("spec", "jobTemplate", "spec", "template"),),
    ("batch", "Job"): _SPEC_TEMPLATE,
    ("jobset.x-k8s.io", "JobSet"): (("spec", "replicatedJobs", _EACH, "template", "spec", "template"),),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
        ("spec", "leaderWorkerTemplate", "leaderTemplate"),
        ("spec", "leaderWorkerTemplate", "workerTemplate"),
    ),
}
"""API group and kind → where the pods are in it."""


_MOST_STEPS: Final = 100
"""How deep templates are looked for: as deep as a file may be nested."""
_OWN_GROUPS: Final = ("", "apps", "autoscaling", "batch", "extensions", "policy")
"""API groups of Kubernetes itself, with those that end in `.k8s.io`: all of their kinds that make pods are above."""


def holds_pods(group: str, kind: str) -> bool:
    """Whether objects of this kind are pods or make pods."""
    return (group, kind) in _PLACES


def is_kubernetes_own(group: str) -> bool:
    """Whether a group is one of Kubernetes itself, so that kinds which are not known here make no pods."""
    return group in _OWN_GROUPS or group.endswith(".k8s.io")


def pod_template_paths(group: str, kind: str, document: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return where the pods are in an object of this kind, as far as it has them: in a pod, the object itself. In an
    object of a kind that is not known here, they are looked for.

    A path may lead to a value that is no object; one to an absent value is left out.
    """
    if not holds_pods(group, kind) and not is_kubernetes_own(group):
        return tuple(_templates(document.get("spec"), ("spec",)))
    return tuple(
        path for steps in _PLACES.get((group, kind), ()) for path, value in _found(document, steps) if value is not None
    )


def value_at(value: Any, path: Path) -> Any:
    """Return the value at a path, None where there is none."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and 0 <= step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _templates(value: Any, path: Path) -> Iterator[Path]:
    """Yield the pod templates in a value, in the order in which they were written: what a field with `template` in its
    name holds that has containers. Patterns of policies have containers too, in fields of other names."""
    containers = value_at(value, ("spec", "containers"))
    if "template" in str(path[-1]).lower() and isinstance(containers, list) and containers:
        yield path
        return
    if len(path) > _MOST_STEPS:
        return
    steps = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for step, item in steps:
        yield from _templates(item, (*path, step))


def _found(value: Any, steps: tuple[str, ...], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if not steps:
        yield path, value
        return
    first, *rest = steps
    if first != _EACH:
        yield from _found(value_at(value, (first,)), tuple(rest), (*path, first))
        return
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from _found(item, tuple(rest), (*path, index))
