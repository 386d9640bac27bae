"""Every operator, macro and section of the language: values, errors and costs against the answers of Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance.vectors import COMPILE_ERROR, ERROR, MATCH, NO_MATCH, differences, ours, read

VECTORS = Path(__file__).parent / "vectors"
FILES = ("arithmetic.json", "language.json", "macros.json", "operators.json", "random.json")


@pytest.mark.parametrize("name", FILES)
def test_we_answer_and_charge_as_kubernetes_does(name: str) -> None:
    file = read(VECTORS / name)
    wrong = [
        f"{vector.expression}: {difference}"
        for vector in file.vectors
        for difference in differences(vector, ours(vector.expression, file.device))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_of_vectors_is_forgotten() -> None:
    assert sorted(path.name for path in VECTORS.glob("*.json")) == sorted(FILES)


def test_the_vectors_hold_every_kind_of_answer_in_number() -> None:
    answers = [vector.answer for name in FILES for vector in read(VECTORS / name).vectors]
    assert len(answers) > 4_000
    for kind in (MATCH, NO_MATCH, ERROR, COMPILE_ERROR):
        assert answers.count(kind) > 500, kind
