"""Which of two states of one object is the newer one."""

from __future__ import annotations

from dracaena.api.objects import KubeObject


def version_of(item: KubeObject) -> int:
    """Return the resourceVersion as a number: of two states of one object, the newer has the greater one (KEP-5504,
    Kubernetes 1.35). 0 if it is not a number."""
    text = item.metadata.resource_version
    return int(text) if text.isascii() and text.isdecimal() else 0
