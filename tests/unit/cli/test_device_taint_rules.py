"""DeviceTaintRules are read in the version that the cluster serves, and their lack is said."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dracaena.api.resource_objects import DeviceTaintRule, DeviceTaintRuleV1Beta2
from dracaena.cli.device_taint_rules import taint_rules
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ForbiddenError, KubeError, NotFoundError


def cluster(answers: dict[type[DeviceTaintRule], Any]) -> KubeClient:
    def listed(kind: type[DeviceTaintRule]) -> Any:
        answer = answers[kind]
        if isinstance(answer, KubeError):
            raise answer
        return SimpleNamespace(items=answer)

    return cast("KubeClient", SimpleNamespace(list=listed))


def read(answers: dict[type[DeviceTaintRule], Any]) -> Sequence[Any] | None:
    return taint_rules(cluster(answers))


NOT_SERVED = NotFoundError("list", 404, "NotFound", "no such kind")
FORBIDDEN = ForbiddenError("list", 403, "Forbidden", "no")


def test_the_newest_version_that_is_served_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert read({DeviceTaintRule: ["new"]}) == ["new"]
    assert read({DeviceTaintRule: NOT_SERVED, DeviceTaintRuleV1Beta2: ["old"]}) == ["old"]
    assert read({DeviceTaintRule: NOT_SERVED, DeviceTaintRuleV1Beta2: NOT_SERVED}) == ()
    assert capsys.readouterr() == ("", "")


def test_rules_that_may_not_be_read_are_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert read({DeviceTaintRule: FORBIDDEN}) is None
    assert "count as free" in capsys.readouterr().err
