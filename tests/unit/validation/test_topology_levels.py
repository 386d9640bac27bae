from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.errors import BadInputError
from dracaena.api.kueue_topology import KueueTopology, KueueTopologyLevel, KueueTopologySpec
from dracaena.api.objects import ObjectMeta
from dracaena.api.topology_levels import MOST_LEVELS, PRESETS, TopologyLevels
from dracaena.validation.topology_levels import levels_of_topologies, read_topology_levels


def test_a_list_may_name_labels_and_known_lists() -> None:
    assert read_topology_levels([]) == TopologyLevels()
    assert read_topology_levels(["example.com/hall", "gke", "rack"]) == TopologyLevels(
        ("example.com/hall", *PRESETS["gke"], "rack")
    )


def topology(name: str, *labels: str) -> KueueTopology:
    levels = tuple(map(KueueTopologyLevel, labels))
    return KueueTopology(metadata=ObjectMeta(name=name), spec=KueueTopologySpec(levels=levels))


@pytest.mark.parametrize(
    ("topologies", "labels", "said"),
    [
        ((), (), "there is no Topology with levels above the node"),
        ((topology("a", "kubernetes.io/hostname"),), (), "there is no Topology with levels above the node"),
        (
            (topology("b", "rack"), topology("a", "block", "rack", "kubernetes.io/hostname")),
            ("block", "rack"),
            "a is used",
        ),
        ((topology("a", "a b"), topology("b", "rack")), ("rack",), "b is used; Topology a names 'a b', which is not a"),
        ((topology("a", *(f"l{number}" for number in range(9))),), (), "Topology a has 9 levels"),
        ((topology("a", "gke"),), ("gke",), "a is used"),
    ],
)
def test_kueue_says_which_labels_by_its_first_topology_that_can_be_used(
    topologies: tuple[KueueTopology, ...], labels: tuple[str, ...], said: str
) -> None:
    assert read_topology_levels(["kueue"]) == TopologyLevels(is_kueues=True)
    levels, words = levels_of_topologies(topologies)
    assert (levels.labels, levels.is_kueues) == (labels, True)
    assert said in words


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("gke", "is not a list of texts"),
        ([1], "is not a list of texts"),
        (["a b"], "names 'a b', which is not a label key"),
        (["x" * 300], "which is not a label key"),
        (["rack", "rack"], "names rack twice"),
        (["gke", "cloud.google.com/gce-topology-block"], "names cloud.google.com/gce-topology-block twice"),
        (["rack", "kueue"], "names kueue and others"),
        (["rack", "kubernetes.io/hostname"], "the node is the lowest level already"),
        ([f"level-{number}" for number in range(MOST_LEVELS + 1)], f"has {MOST_LEVELS + 1} levels"),
    ],
)
def test_a_list_that_cannot_be_says_why(document: Any, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        read_topology_levels(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(sorted(PRESETS)),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_whatever_is_given_becomes_levels_or_is_refused(document: Any) -> None:
    try:
        found = len(read_topology_levels(document).labels)
    except BadInputError as error:
        found = len(str(error)) // 100
    assert found <= MOST_LEVELS
