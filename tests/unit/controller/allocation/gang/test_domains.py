"""Levels that some node names, from the node up; nodes that do not name one are domains of their own there."""

from __future__ import annotations

from dracaena.controller.allocation.gang.domains import Domains

PATHS = {"n0": ("b0", "b0/r0", "c.0"), "n1": ("b0", "b0/r1", "c.0"), "n2": ("b1", None, None)}


def test_heights_are_the_levels_that_are_there() -> None:
    assert Domains(("block", "rack"), PATHS).names == ("node", "NVLink clique", "rack", "block", "cluster")
    assert Domains(("block", "rack"), {"n0": ("b0", None, None)}).names == ("node", "block", "cluster")
    assert Domains(("block", "rack"), {}).names == ("node", "cluster")


def test_a_node_that_names_no_domain_is_one_of_its_own() -> None:
    domains = Domains(("block", "rack"), PATHS)
    assert [domains.domain("n1", height) for height in range(5)] == ["n1", "c.0", "b0/r1", "b0", "cluster"]
    assert [domains.domain("n2", height) for height in range(5)] == ["n2", "n2", "n2", "b1", "cluster"]
    assert domains.domain("unknown", 3) == "unknown"


def test_cliques_count_first_then_the_largest_domains() -> None:
    assert Domains(("block", "rack"), PATHS).below(4) == (1, 3, 2)
    assert Domains(("block", "rack"), PATHS).below(1) == ()
    without = Domains(("block", "rack"), {name: (*path[:2], None) for name, path in PATHS.items()})
    assert without.below(3) == (2, 1)


def test_levels_are_found_by_name() -> None:
    domains = Domains(("block", "rack"), PATHS)
    assert (domains.height_of("node"), domains.height_of("rack"), domains.height_of("row")) == (0, 2, None)
