"""Which policy applies to a request that several configs cover."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TypeVar

from dracaena.api.config.v1alpha1.errors import ConfigError
from dracaena.api.config.v1alpha1.types import (
    NO_POLICY,
    NO_SHARING,
    GpuConfig,
    GpuSharing,
    Iommu,
    LinkBandwidth,
    Requirement,
    TopologyPolicy,
    VfioConfig,
)

T = TypeVar("T", TopologyPolicy, LinkBandwidth, GpuSharing)


def merged(class_policies: Iterable[TopologyPolicy], claim_policies: Iterable[TopologyPolicy]) -> TopologyPolicy:
    """Return the policy of a request: each field comes from the last policy that sets it, claims after classes.

    Field by field, and linkBandwidth figure by figure, because a user who asks for NVLink does not mean to drop the
    figures that the admin measured. To undo an earlier policy, a later one states the default. Raises ConfigError if
    policies that are valid alone contradict each other.
    """
    policy = NO_POLICY
    for later in (*class_policies, *claim_policies):
        policy = replace(_over(policy, later), link_bandwidth=_over(policy.link_bandwidth, later.link_bandwidth))
    check_policy(policy)
    return policy


def merged_sharing(configs: Iterable[GpuConfig]) -> GpuSharing:
    """Return what applies of several configs: each field comes from the last one that sets it. Classes come first."""
    sharing = NO_SHARING
    for config in configs:
        sharing = _over(sharing, config.sharing)
    return sharing


def merged_iommu(configs: Iterable[VfioConfig]) -> Iommu:
    """Return what applies of several configs: the value of the last one that sets it. Classes come first."""
    said = [config.iommu for config in configs if config.iommu is not None]
    return said[-1] if said else Iommu.GROUP


def check_policy(policy: TopologyPolicy) -> None:
    """Raise ConfigError for a policy that no set of GPUs can ever meet."""
    figures = policy.link_bandwidth
    if figures.nvlink != 0:
        return
    if policy.requirement is Requirement.NVLINK:
        raise ConfigError("$.linkBandwidth.NVLink", figures.nvlink, "more than 0 together with requirement NVLink")
    levels = [figures.psb, figures.pix, figures.pxb, figures.phb, figures.node, figures.sys]
    known = [figure for figure in levels if figure is not None]
    least = policy.min_bandwidth_gb_s
    if least is not None and len(known) == len(levels) and least > max(known):
        expected = f"at most {max(known):g}, the largest figure of linkBandwidth"
        raise ConfigError("$.minBandwidth", least, expected)


def _over(earlier: T, later: T) -> T:
    said = {field.name: getattr(later, field.name) for field in fields(later)}
    return replace(earlier, **{name: value for name, value in said.items() if value is not None})
