"""Pods of an input as they are after admission, in the namespaces of the input whose pods get claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dracaena.api.pod_rewriting import missing_for_claims, opts_in, rewritten
from dracaena.validation.findings import Path
from dracaena.validation.pod_templates import pod_template_paths, value_at
from dracaena.validation.quotas import is_namespace

_DEFAULT_NAMESPACE: Final = "default"
"""Where kubectl puts an object that names none."""


class Rewriting:
    """Which namespaces of an input opt in, and what that makes of its pods. What is not in the input may be in the
    cluster: its pods stay as they are."""

    def __init__(self, documents: Iterable[Mapping[str, Any]], driver: str) -> None:
        self._driver = driver
        self._namespaces = {
            str(value_at(one, ("metadata", "name"))): one
            for one in documents
            if is_namespace(*_group_and_kind(one)) and opts_in(one, driver)
        }

    def __call__(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object with claims in place of nvidia.com/gpu in its pods; itself if nothing changes. Paths of what
        was written stay valid."""
        if (namespace := self._namespace(document)) is None:
            return document
        for path in pod_template_paths(*_group_and_kind(document), document):
            pod = value_at(document, path)
            if isinstance(pod, Mapping) and not self._is_created(document):
                document = _with(document, path, rewritten(pod, namespace, self._driver))
        return document

    def missing(self, document: Mapping[str, Any], pod: Any) -> str | None:
        """Say what a pod that asks for nvidia.com/gpu, itself or a template in an object, needs to get claims although
        its namespace has opted in. None if the namespace has not."""
        if self._namespace(document) is None or not isinstance(pod, Mapping):
            return None
        if self._is_created(document):
            return "a new pod: this one was created without claims, and its namespace's label changes only new ones"
        return missing_for_claims(pod, self._driver)

    def _namespace(self, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return self._namespaces.get(str(value_at(document, ("metadata", "namespace")) or _DEFAULT_NAMESPACE))

    def _is_created(self, document: Mapping[str, Any]) -> bool:
        """Whether an object is a pod that a server has admitted: policies change only new ones."""
        return document.get("kind") == "Pod" and bool(value_at(document, ("metadata", "uid")))


def _with(value: Any, path: Path, new: Any) -> Any:
    """Return a document with another value at a path."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    changed = _with(value[step], rest, new)
    if isinstance(value, Mapping):
        return {**value, step: changed}
    return [changed if place == step else one for place, one in enumerate(value)]


def _group_and_kind(document: Mapping[str, Any]) -> tuple[str, str]:
    return str(document.get("apiVersion", "")).rpartition("/")[0], str(document.get("kind", ""))
