from __future__ import annotations

import json
from importlib import resources
from typing import Any

import msgspec
import pytest

from dracaena.api.config.v1alpha1 import (
    API_VERSION,
    NO_SHARING,
    Confidentiality,
    ConfigError,
    Enforcement,
    GpuConfig,
    GpuSharing,
    Iommu,
    LinkBandwidth,
    NicAlignment,
    NodeStrategy,
    NumaAlignment,
    Objective,
    Requirement,
    SharingStrategy,
    Siblings,
    TimeSliceInterval,
    TopologyPolicy,
    VfioConfig,
    decode_config,
    merged,
    merged_iommu,
    merged_sharing,
)

MAX_GB_S = 10_000
"""The largest bandwidth that the schema allows."""


def policy(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "TopologyPolicy", **fields}


def test_a_policy_without_fields_says_nothing() -> None:
    assert decode_config(policy()) == TopologyPolicy()


def test_every_field_is_read() -> None:
    document = policy(
        requirement="PXB",
        minBandwidth=12.5,
        objective="Pack",
        nodeStrategy="Spread",
        numaAlignment="Required",
        nicAlignment="PHB",
        siblings="Ignored",
        linkBandwidth={"NVLink": 14.0625, "SYS": 4, "PIX": 0},
    )
    assert decode_config(document) == TopologyPolicy(
        requirement=Requirement.PXB,
        min_bandwidth_gb_s=12.5,
        objective=Objective.PACK,
        node_strategy=NodeStrategy.SPREAD,
        numa_alignment=NumaAlignment.REQUIRED,
        nic_alignment=NicAlignment.PHB,
        siblings=Siblings.IGNORED,
        link_bandwidth=LinkBandwidth(nvlink=14.0625, sys=4.0, pix=0.0),
    )


@pytest.mark.parametrize(
    ("field", "choices"),
    [
        ("objective", Objective),
        ("nodeStrategy", NodeStrategy),
        ("numaAlignment", NumaAlignment),
        ("nicAlignment", NicAlignment),
        ("siblings", Siblings),
    ],
)
def test_the_schema_and_the_types_have_the_same_choices(field: str, choices: Any) -> None:
    text = resources.files("dracaena.api.config.v1alpha1").joinpath("topologypolicy.schema.json").read_text("utf-8")
    schema = json.loads(text)["properties"][field]
    assert schema["enum"] == [choice.value for choice in choices]
    assert schema["default"] == schema["enum"][0]


@pytest.mark.parametrize("name", ["NVLink", "PSB", "PIX", "PXB", "PHB", "NODE", "SYS"])
def test_every_link_may_have_a_figure_of_its_own(name: str) -> None:
    config = decode_config(policy(linkBandwidth={name: 7}))
    assert isinstance(config, TopologyPolicy)
    assert config.link_bandwidth == LinkBandwidth(**{name.lower(): 7.0})


@pytest.mark.parametrize("name", ["NVLink", "SYS"])
def test_a_figure_that_can_only_be_mb_s_is_refused(name: str) -> None:
    decode_config(policy(linkBandwidth={name: MAX_GB_S}))
    with pytest.raises(ConfigError, match=str(MAX_GB_S)):
        decode_config(policy(linkBandwidth={name: MAX_GB_S + 1}))


@pytest.mark.parametrize("requirement", list(Requirement))
def test_every_requirement_is_read(requirement: Requirement) -> None:
    assert decode_config(policy(requirement=requirement.value)) == TopologyPolicy(requirement=requirement)


def test_the_gpu_config_has_no_fields() -> None:
    assert decode_config({"apiVersion": API_VERSION, "kind": "GpuConfig"}) == GpuConfig()


@pytest.mark.parametrize(
    ("parameters", "path", "text"),
    [
        ({}, "$.apiVersion", "$.apiVersion: nothing, expected 'gpu.dracaena.dev/v1alpha1'"),
        (
            {"apiVersion": "gpu.nvidia.com/v1beta1", "kind": "GpuConfig"},
            "$.apiVersion",
            "$.apiVersion: 'gpu.nvidia.com/v1beta1', expected 'gpu.dracaena.dev/v1alpha1'",
        ),
        (
            {"apiVersion": "gpu.dracaena.dev/v1", "kind": "GpuConfig"},
            "$.apiVersion",
            "$.apiVersion: 'gpu.dracaena.dev/v1', expected 'gpu.dracaena.dev/v1alpha1'",
        ),
        (
            {"apiVersion": API_VERSION, "kind": "MigConfig"},
            "$.kind",
            "$.kind: 'MigConfig', expected one of 'TopologyPolicy', 'GpuConfig', 'VfioConfig'",
        ),
        (
            {"apiVersion": API_VERSION, "kind": ["x"]},
            "$.kind",
            "expected one of 'TopologyPolicy', 'GpuConfig', 'VfioConfig'",
        ),
        (
            policy(requirement="nvlnk"),
            "$.requirement",
            "$.requirement: 'nvlnk', expected one of 'BestEffort', 'NVLink', 'PIX', 'PXB', 'PHB', 'NODE'",
        ),
        (policy(requirement=None), "$.requirement", "$.requirement: nothing, expected one of"),
        (
            policy(requirment="NVLink"),
            "$.requirment",
            "$.requirment: 'NVLink', expected no such field (known: apiVersion, kind, linkBandwidth,",
        ),
        (policy(minBandwidth=0), "$.minBandwidth", "$.minBandwidth: 0, expected more than 0"),
        (policy(minBandwidth=-1), "$.minBandwidth", "$.minBandwidth: -1, expected more than 0"),
        (policy(minBandwidth="50"), "$.minBandwidth", "$.minBandwidth: '50', expected a number"),
        (policy(minBandwidth=True), "$.minBandwidth", "$.minBandwidth: True, expected a number"),
        (policy(minBandwidth=50_000), "$.minBandwidth", "expected at most 10000 (the unit is GB/s)"),
        (policy(minBandwidth=float("nan")), "$.minBandwidth", "$.minBandwidth: nan, expected a number"),
        (policy(objective="pack"), "$.objective", "$.objective: 'pack', expected one of 'Bandwidth', 'Pack'"),
        (policy(nodeStrategy=3), "$.nodeStrategy", "$.nodeStrategy: 3, expected one of 'Pack', 'Spread'"),
        (policy(numaAlignment=True), "$.numaAlignment", "expected one of 'Preferred', 'Required', 'Ignored'"),
        (policy(nicAlignment="SYS"), "$.nicAlignment", "$.nicAlignment: 'SYS', expected one of 'Preferred', 'Ignored'"),
        (policy(linkBandwidth=25), "$.linkBandwidth", "$.linkBandwidth: 25, expected a mapping"),
        (policy(linkBandwidth={}), "$.linkBandwidth", "expected at least 1 entry"),
        (policy(linkBandwidth={"NVLink": None}), "$.linkBandwidth.NVLink", "nothing, expected a number"),
        (policy(linkBandwidth={"SYS": -1}), "$.linkBandwidth.SYS", "$.linkBandwidth.SYS: -1, expected at least 0"),
        (
            policy(linkBandwidth={"NVLINK": 1}),
            "$.linkBandwidth.NVLINK",
            "$.linkBandwidth.NVLINK: 1, expected no such field (known: NODE, NVLink, PHB, PIX, PSB, PXB, SYS)",
        ),
        (
            policy(requirement="NVLink", linkBandwidth={"NVLink": 0}),
            "$.linkBandwidth.NVLink",
            "$.linkBandwidth.NVLink: 0.0, expected more than 0 together with requirement NVLink",
        ),
        (
            policy(
                minBandwidth=20,
                linkBandwidth={
                    "NVLink": 0,
                    **dict.fromkeys(("PSB", "PIX", "PXB"), 12),
                    **dict.fromkeys(("PHB", "NODE", "SYS"), 6),
                },
            ),
            "$.minBandwidth",
            "$.minBandwidth: 20.0, expected at most 12, the largest figure of linkBandwidth",
        ),
        (
            {"apiVersion": API_VERSION, "kind": "GpuConfig", "colour": "red"},
            "$.colour",
            "$.colour: 'red', expected no such field (known: apiVersion, confidential, kind, sharing)",
        ),
        (
            {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": "mps"}},
            "$.sharing.strategy",
            "$.sharing.strategy: 'mps', expected one of 'MPS', 'TimeSlicing'",
        ),
        (
            {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"interval": "short"}},
            "$.sharing.interval",
            "$.sharing.interval: 'short', expected one of 'Default', 'Short', 'Medium', 'Long'",
        ),
        (
            {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"enforcement": "Maybe"}},
            "$.sharing.enforcement",
            "$.sharing.enforcement: 'Maybe', expected one of 'Required', 'BestEffort'",
        ),
        (
            {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"mpsConfig": {}}},
            "$.sharing.mpsConfig",
            "$.sharing.mpsConfig: {}, expected no such field (known: enforcement, interval, strategy)",
        ),
        (
            {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": "MPS"},
            "$.sharing",
            "$.sharing: 'MPS', expected a mapping",
        ),
    ],
)
def test_a_broken_config_says_where_what_was_seen_and_what_was_expected(
    parameters: dict[str, Any], path: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_config(parameters)
    assert caught.value.path == path
    assert text in str(caught.value)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        decode_config(policy(requirement="x" * 10_000))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("kind", ["topologypolicy", "gpuconfig", "vfioconfig"])
def test_the_schemas_are_package_data_and_refer_to_nothing_outside(kind: str) -> None:
    folder = resources.files("dracaena.api.config.v1alpha1")
    text = folder.joinpath(f"{kind}.schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False
    assert '"$ref"' not in text


def test_a_claim_wins_over_its_class_field_by_field() -> None:
    of_class = TopologyPolicy(
        requirement=Requirement.NVLINK,
        objective=Objective.PACK,
        link_bandwidth=LinkBandwidth(nvlink=14.0, sys=3.0),
    )
    of_claim = TopologyPolicy(
        requirement=Requirement.BEST_EFFORT, min_bandwidth_gb_s=10.0, link_bandwidth=LinkBandwidth(sys=0.0)
    )
    assert merged([of_class], [of_claim]) == TopologyPolicy(
        requirement=Requirement.BEST_EFFORT,
        min_bandwidth_gb_s=10.0,
        objective=Objective.PACK,
        link_bandwidth=LinkBandwidth(nvlink=14.0, sys=0.0),
    )


def test_of_several_entries_in_one_place_the_later_wins() -> None:
    first, second = (
        TopologyPolicy(numa_alignment=NumaAlignment.REQUIRED),
        TopologyPolicy(nic_alignment=NicAlignment.PIX),
    )
    third = TopologyPolicy(numa_alignment=NumaAlignment.IGNORED)
    assert merged([first, second, third], []) == TopologyPolicy(
        numa_alignment=NumaAlignment.IGNORED, nic_alignment=NicAlignment.PIX
    )
    assert merged([third], [first, second]).numa_alignment is NumaAlignment.REQUIRED
    assert merged([], []) == TopologyPolicy()


def test_policies_that_contradict_each_other_only_together_are_refused() -> None:
    of_class = TopologyPolicy(link_bandwidth=LinkBandwidth(nvlink=0.0))
    of_claim = TopologyPolicy(requirement=Requirement.NVLINK)
    with pytest.raises(ConfigError, match="more than 0 together with requirement NVLink") as caught:
        merged([of_class], [of_claim])
    assert caught.value.path == "$.linkBandwidth.NVLink"


def deep(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (deep(33), "more than 32 levels deep"),
        (deep(4_000), "more than 32 levels deep"),
        (b'{"a":"' + b"x" * 70_000 + b'"}', "70008 bytes"),
        (rb'{"a":"\ud800"}', "truncated"),
        (b'{"a":"\xff"}', "can't decode byte 0xff"),
        (b'{"a":1e999}', "Number out of range"),
        (b"[]", "Expected `object`, got `array`"),
        (b"", "Input data was truncated"),
    ],
)
def test_text_that_is_no_config_is_named_and_nothing_is_raised_but_config_errors(text: bytes, seen: str) -> None:
    with pytest.raises(ConfigError, match=r"^\$: ") as raised:
        decode_config(msgspec.Raw(text))
    assert seen in str(raised.value)


def test_32_levels_are_read_and_judged_by_the_schema() -> None:
    with pytest.raises(ConfigError, match=r"^\$\.apiVersion: nothing"):
        decode_config(msgspec.Raw(deep(32)))


def test_text_and_its_value_are_read_alike() -> None:
    document = policy(requirement="PXB", minBandwidth=12.5)
    assert decode_config(msgspec.Raw(json.dumps(document).encode())) == decode_config(document)


def test_a_value_that_is_nested_too_deep_is_refused_like_its_text() -> None:
    value: Any = 0
    for _ in range(4_000):
        value = [value]
    with pytest.raises(ConfigError, match="more than 32 levels deep"):
        decode_config(policy(requirement=value))


def gpu_config(**sharing: str) -> GpuConfig:
    config = decode_config({"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": sharing})
    assert isinstance(config, GpuConfig)
    return config


def test_sharing_is_read() -> None:
    assert gpu_config() == GpuConfig()
    assert gpu_config(strategy="TimeSlicing", enforcement="BestEffort").sharing == GpuSharing(
        SharingStrategy.TIME_SLICING, Enforcement.BEST_EFFORT
    )
    assert gpu_config(interval="Medium").sharing.interval is TimeSliceInterval.MEDIUM
    assert gpu_config(strategy="MPS").sharing.is_required
    assert gpu_config(enforcement="Required").sharing.is_required
    assert not gpu_config(enforcement="BestEffort").sharing.is_required


def test_that_a_gpu_must_compute_confidentially_is_read() -> None:
    parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig"}
    assert decode_config({**parameters, "confidential": "Required"}) == GpuConfig(confidential=Confidentiality.REQUIRED)
    for wrong in ("required", "BestEffort", True, None):
        with pytest.raises(ConfigError, match=r"\$\.confidential"):
            decode_config({**parameters, "confidential": wrong})


def test_of_several_configs_the_last_that_says_something_holds_field_by_field() -> None:
    configs = [gpu_config(strategy="MPS", enforcement="BestEffort"), gpu_config(strategy="TimeSlicing"), gpu_config()]
    assert merged_sharing(configs) == GpuSharing(SharingStrategy.TIME_SLICING, Enforcement.BEST_EFFORT)
    assert merged_sharing([*configs, gpu_config(enforcement="Required")]).is_required
    assert merged_sharing([]) == NO_SHARING


def test_how_a_gpu_for_a_virtual_machine_is_opened_is_what_the_last_config_says() -> None:
    def config(**fields: str) -> VfioConfig:
        read = decode_config({"apiVersion": API_VERSION, "kind": "VfioConfig", **fields})
        assert isinstance(read, VfioConfig)
        return read

    assert merged_iommu([]) is merged_iommu([config()]) is Iommu.GROUP
    assert merged_iommu([config(iommu="IOMMUFD"), config()]) is Iommu.IOMMUFD
    assert merged_iommu([config(iommu="IOMMUFD"), config(iommu="Group")]) is Iommu.GROUP
    with pytest.raises(ConfigError, match=r"\$.iommu: 'iommufd', expected one of 'Group', 'IOMMUFD'"):
        config(iommu="iommufd")
    with pytest.raises(ConfigError, match=r"\$.sharing: .*expected no such field"):
        config(sharing="MPS")
