"""Kubernetes' library for semantic versions, version 1: with the second argument that normalises a version first."""

from __future__ import annotations

from typing import Any, Final

from dracaena.cel.cost import reading_work, size_of, tenth
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, global_, member
from dracaena.cel.types import BOOL, INT, SEMVER, STRING
from dracaena.cel.value import INT_MAX
from dracaena.cel.values.semver import Semver


def _semver(text: str, normalize: bool = False) -> Semver:  # noqa: FBT001
    return Semver.parse_loose(text) if normalize else Semver.parse(text)


def _is_semver(text: str, normalize: bool = False) -> bool:  # noqa: FBT001
    try:
        _semver(text, normalize)
    except EvaluationError:
        return False
    return True


def _as_int64(number: int) -> int:
    """Numbers of versions are uint64; what int64 cannot hold becomes negative, as in the reference."""
    return number if number <= INT_MAX else number - 2**64


def _text_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(size_of(arguments[0]))


_PAIR: Final = (SEMVER, SEMVER)

FUNCTIONS: Final = (
    Function(
        "semver",
        (
            global_("string_to_semver", (STRING,), SEMVER, _semver, work=reading_work),
            global_("string_bool_to_semver", (STRING, BOOL), SEMVER, _semver, work=reading_work),
        ),
        _text_cost,
    ),
    Function(
        "isSemver",
        (
            global_("is_semver_string", (STRING,), BOOL, _is_semver, work=reading_work),
            global_("is_semver_string_bool", (STRING, BOOL), BOOL, _is_semver, work=reading_work),
        ),
        _text_cost,
    ),
    Function(
        "isGreaterThan",
        (member("semver_is_greater_than", _PAIR, BOOL, lambda version, other: version.compare(other) > 0),),
        1,
    ),
    Function(
        "isLessThan",
        (member("semver_is_less_than", _PAIR, BOOL, lambda version, other: version.compare(other) < 0),),
        1,
    ),
    Function("compareTo", (member("semver_compare_to", _PAIR, INT, Semver.compare),), 1),
    Function("major", (member("semver_major", (SEMVER,), INT, lambda version: _as_int64(version.major)),), 1),
    Function("minor", (member("semver_minor", (SEMVER,), INT, lambda version: _as_int64(version.minor)),), 1),
    Function("patch", (member("semver_patch", (SEMVER,), INT, lambda version: _as_int64(version.patch)),), 1),
)
