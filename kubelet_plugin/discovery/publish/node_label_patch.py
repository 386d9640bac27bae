"""What to change on a Node so that it has these labels, and none that we set earlier and that no longer apply.

An annotation records which labels we set. Labels of others under the same names, such as those that GPU feature
discovery left behind, are replaced if their value is wrong, but never removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dracaena.kubelet_plugin.discovery.publish.node_labels import PREFIX

ANNOTATION: Final = "node-labels"
"""After the driver's name: the names of the labels that we set, sorted, joined by commas."""

NVIDIA_LABELS: Final = (
    r"^nvidia\.com/(cuda\.(driver|driver-version|runtime|runtime-version)\.(major|minor|rev|revision|full)"
    r"|gfd\.timestamp|mig\.(capable|strategy)|mps\.capable"
    r"|gpu\.(machine|mode|family|clique|compute\.major|compute\.minor)"
    r"|(gpu|mig-[0-9a-z.-]+)\.(product|count|memory|replicas|sharing-strategy|multiprocessors|slices\.(gi|ci)"
    r"|engines\.(copy|decoder|encoder|jpeg|ofa)))$"
)
"""Names of GPU feature discovery that node_labels() may set, as a regular expression for both RE2 and Python: the
chart's admission policy has the same. It excludes labels that control other programs, such as `nvidia.com/gpu.deploy.*`
and `nvidia.com/mig.config` of the GPU operator. The operator also acts on `mig.capable`. For `mps.capable`, which can
start NVIDIA's MPS daemon, the policy allows only `false`, the only value that we set."""

OWN_LABELS: Final = ("topology", "nvlink-group-size")
"""After the driver's name. Never `settings` and `release-driver`, with which an admin controls the plugin."""

_NVIDIA = re.compile(NVIDIA_LABELS)


def may_write(label: str, driver: str) -> bool:
    """Return whether we may set and remove a label of a Node."""
    if label.startswith(PREFIX):
        return _NVIDIA.fullmatch(label) is not None
    return label in {f"{driver}/{name}" for name in OWN_LABELS}


def label_patch(
    wanted: Mapping[str, str], labels: Mapping[str, str], annotations: Mapping[str, str], driver: str
) -> dict[str, Any] | None:
    """Return an RFC 7386 patch of the Node, or None if it is as wanted.

    `labels` and `annotations` are those that it has. A label counts as ours once we have changed its value: one that
    already had the wanted value stays even after it no longer applies. A forged annotation cannot make us remove labels
    other than those that may_write() allows.
    """
    annotation = f"{driver}/{ANNOTATION}"
    given = frozenset(annotations.get(annotation, "").split(","))
    gone = {name: None for name in given if name in labels and name not in wanted and may_write(name, driver)}
    changed = {name: value for name, value in wanted.items() if labels.get(name) != value}
    record = ",".join(sorted(name for name in wanted if name in changed or name in given)) or None
    metadata: dict[str, Any] = {}
    if gone or changed:
        metadata["labels"] = dict(sorted({**gone, **changed}.items()))
    if annotations.get(annotation) != record:
        metadata["annotations"] = {annotation: record}
    return {"metadata": metadata} if metadata else None
