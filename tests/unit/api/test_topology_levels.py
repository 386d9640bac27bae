"""What nodes are in, according to their labels, which anybody who may label nodes can write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.limits import DNS_LABEL_BYTES
from dracaena.api.topology_levels import DEFAULT_LEVELS, MOST_LEVELS, NO_LEVELS, PRESETS, RACK, TopologyLevels

LEVELS = TopologyLevels(("example.com/hall", "example.com/block", "rack"))


@pytest.mark.parametrize(
    ("labels", "domains"),
    [
        ({}, (None, None, None)),
        ({"example.com/hall": "h", "example.com/block": "b", "rack": "r"}, ("h", "h/b", "h/b/r")),
        ({"example.com/hall": "h", "rack": "r"}, ("h", None, "h/-/r")),
        ({"rack": "r"}, (None, None, "-/-/r")),
        ({"example.com/hall": "", "example.com/block": "b", "other": "x"}, (None, "-/b", None)),
    ],
)
def test_a_domain_is_the_path_to_it(labels: dict[str, str], domains: tuple[str | None, ...]) -> None:
    assert LEVELS.domains(labels) == domains


@pytest.mark.parametrize("value", ["", "-", "a/b", "/", "r" * (DNS_LABEL_BYTES + 1), "r" * 1_000_000])
def test_what_is_no_label_value_is_no_domain(value: str) -> None:
    assert DEFAULT_LEVELS.domains({RACK: value}) == (None,)
    assert DEFAULT_LEVELS.domains({RACK: "r" * DNS_LABEL_BYTES}) == ("r" * DNS_LABEL_BYTES,)


VALUES = st.sampled_from(["", "-", "a", "b", "a/b", "-/a", "a/-"])
NODES = st.fixed_dictionaries(dict.fromkeys(LEVELS.labels, VALUES))


@given(NODES, NODES)
def test_two_nodes_are_in_one_domain_if_they_agree_on_it_and_all_above(
    one: dict[str, str], other: dict[str, str]
) -> None:
    """Whatever the values are: none can stand for another path."""
    kept = [[{"a": "a", "b": "b"}.get(labels[key]) for key in LEVELS.labels] for labels in (one, other)]
    pairs = zip(LEVELS.domains(one), LEVELS.domains(other), strict=True)
    for place, (mine, theirs) in enumerate(pairs):
        agree = kept[0][: place + 1] == kept[1][: place + 1] and kept[0][place] is not None
        assert (mine is not None and mine == theirs) == agree


def test_levels_have_the_names_that_people_use() -> None:
    assert LEVELS.names == ("hall", "block", "rack")
    domains = LEVELS.domains({"example.com/hall": "h", "rack": "r"})
    assert list(LEVELS.named(domains)) == [("hall", "h"), ("rack", "r")]
    assert NO_LEVELS.domains({RACK: "r"}) == NO_LEVELS.names == ()


def test_known_lists_fit_and_have_no_level_twice() -> None:
    for labels in PRESETS.values():
        assert len(set(labels)) == len(labels) <= MOST_LEVELS
