"""Checks the quota of a Namespace (api.gpu_quota)."""

from __future__ import annotations

from dracaena.api.gpu_quota import read_leniently
from dracaena.api.names import quota_annotation
from dracaena.validation.field import Field


def is_namespace(group: str, kind: str) -> bool:
    """Return whether objects of a kind may have a quota."""
    return (group, kind) == ("", "Namespace")


def check_quota(namespace: Field, driver: str) -> None:
    """Report what the controller could not read: then the last quota of the namespace stays in force."""
    quota = namespace.at("metadata", "annotations", quota_annotation(driver))
    if quota.absent:
        return
    if not isinstance(quota.value, str):
        quota.error("no text", "a JSON object as text")
        return
    for problem in read_leniently(quota.value)[1]:
        said, _, expected = str(problem).rpartition(", expected ")
        quota.error(said, expected)
