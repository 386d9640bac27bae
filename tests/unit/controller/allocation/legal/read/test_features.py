from __future__ import annotations

from dataclasses import fields

import pytest

from dracaena.controller.allocation.legal.read.features import RULES_OF_1_37, Features


@pytest.mark.parametrize(("version", "has"), [((1, 36), False), ((1, 37), True), ((1, 38), True), ((2, 0), True)])
def test_a_cluster_has_the_rules_of_its_version_and_of_all_before(version: tuple[int, int], has: bool) -> None:
    features = Features.of(version)
    assert {getattr(features, name) for name in RULES_OF_1_37} == {has}
    others = [field.name for field in fields(Features) if field.name not in RULES_OF_1_37]
    assert [getattr(features, name) for name in others] == [getattr(Features(), name) for name in others]
