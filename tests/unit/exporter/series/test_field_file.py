from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.errors import BadInputError
from dracaena.exporter.series.field_file import default_fields, read_field_file
from dracaena.exporter.series.fields import BY_NAME, DRIVER_VERSION, FIELDS

LINES = [f"{field.name}, {field.type}, {field.help}" for field in FIELDS]


def test_the_default_is_what_a_file_with_all_default_fields_chooses() -> None:
    default = [f'{field.name}, {field.type}, "{field.help}"' for field in FIELDS if field.by_default]
    assert read_field_file("\n".join([*default, f"{DRIVER_VERSION}, label, Driver"]).encode()) == default_fields()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("DCGM_FI_DEV_GPU_TEMP", "expected FIELD, type, help"),
        ("DCGM_FI_DEV_NO_SUCH, gauge, x", "no such field"),
        ("DCGM_FI_DEV_GPU_TEMP, histogram, x", "type 'histogram'"),
        ("DCGM_FI_DRIVER_VERSION, gauge, x", "can only be a label"),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, x", "wrong unit"),
        ("DCGM_FI_DEV_SM_CLOCK, gauge, again", "stands twice"),
    ],
)
def test_a_line_that_serves_nothing_says_why_and_hinders_no_other(line: str, fault: str) -> None:
    chosen = read_field_file(f"{LINES[0]}\n{line}\n# a comment\n\n{LINES[1]}\n".encode())
    assert [field.name for field in chosen.fields] == [FIELDS[0].name, FIELDS[1].name]
    (said,) = chosen.faults
    assert fault in said


def test_help_may_have_commas() -> None:
    chosen = read_field_file(b"DCGM_FI_DEV_GPU_TEMP, gauge, warm, or not\r\n")
    assert chosen.fields[0].help == "warm, or not"


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"\x80"])
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(BadInputError, match="field file"):
        read_field_file(data)


@given(st.lists(st.sampled_from([*LINES, "x", "a,b,c", '"', "\0", f"{DRIVER_VERSION},label,v"]) | st.text(max_size=20)))
def test_any_lines_choose_each_field_once_and_the_rest_is_said(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        chosen = read_field_file(text.encode("utf-8", "replace"))
    except BadInputError:
        return
    names = [field.name for field in chosen.fields]
    assert len(set(names)) == len(names)
    assert set(names) <= set(BY_NAME)
