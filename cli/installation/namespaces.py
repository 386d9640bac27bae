"""Namespaces: the one of the programs, and what labels and annotations ask for in the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dracaena.api.gpu_quota import read_leniently
from dracaena.api.names import quota_annotation, rewrite_label
from dracaena.cli.installation.programs import PLUGIN
from dracaena.cli.installation.snapshot import Finding, Quote, Snapshot, fine, labels, name_of, text, texts, to_fix

_ENFORCED: Final = "pod-security.kubernetes.io/enforce"


def pod_security(snapshot: Snapshot) -> Iterator[Finding]:
    """The plugin's namespace allows privileged pods."""
    homes = {text(one, "metadata", "namespace") for one in snapshot.of_component("daemonsets", PLUGIN)}
    found = [one for one in snapshot.objects("namespaces") if name_of(one) in homes]
    for one in found:
        level = labels(one).get(_ENFORCED, "privileged")
        if level != "privileged":
            words = "namespace {} has {}={}, which refuses the plugin's pods: an admin has to set it to privileged"
            yield to_fix(words, name_of(one), _ENFORCED, level)
        else:
            yield fine("namespace {} allows the plugin's pods", name_of(one))


def label_values(snapshot: Snapshot) -> Iterator[Finding]:
    """Labels of namespaces have a value that is known, and a policy that obeys them."""
    driver = snapshot.driver
    policies = [name_of(one) for one in snapshot.objects("mutatingadmissionpolicies")]
    asking: list[str] = []
    for key, prefix, value in (
        (rewrite_label(driver), "rewrite-", "rewrite.resourceNames"),
        (f"{driver}/gate", "gate.", "schedulingGate"),
    ):
        has_policy = any(one.startswith(prefix) and one.endswith(f".{driver}") for one in policies)
        for one in snapshot.objects("namespaces"):
            asked = labels(one).get(key)
            if asked not in (None, "true", "false"):
                words = "namespace {} has the label {}={}, which does nothing: set it to true or false"
                yield to_fix(words, name_of(one), key, Quote(asked))
            elif asked == "true" and not has_policy:
                words = "namespace {} has the label {}=true and no policy obeys it: an admin has to set the chart's {}"
                yield to_fix(words, name_of(one), key, value)
            elif asked == "true":
                asking.append(name_of(one))
    yield fine("namespaces whose labels are obeyed: {}", str(len(set(asking))))


def quotas(snapshot: Snapshot) -> Iterator[Finding]:
    """Quotas can be read."""
    key = quota_annotation(snapshot.driver)
    count = 0
    for one in snapshot.objects("namespaces"):
        quota = texts(one, "metadata", "annotations").get(key)
        if quota is None:
            continue
        count += 1
        if problems := read_leniently(quota)[1]:
            words = "the quota of namespace {} cannot be read: {}: an admin has to fix the annotation {}"
            yield to_fix(words, name_of(one), Quote(problems[0]), key)
    yield fine("namespaces with a quota: {}", str(count))
