"""Fields that only one version has."""

from __future__ import annotations

import pytest

from dracaena.demo.apiserver.decode import decode
from dracaena.demo.apiserver.schema import structs


@pytest.mark.parametrize(
    ("version", "unknown"), [("1.37", []), ("1.36", ["spec.updateStrategy.rollingUpdate.maxUnavailable"])]
)
def test_a_field_of_another_version_is_unknown(version: str, unknown: list[str]) -> None:
    document = {"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}}}
    read = decode(structs()["StatefulSet"], document, version=version)
    assert read.strict_errors == [f'unknown field "{field}"' for field in unknown]
