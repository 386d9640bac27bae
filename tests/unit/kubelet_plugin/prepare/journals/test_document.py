"""Files of journals and records as a disk, a crash or another version may leave them: each is read or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.kubelet_plugin.prepare.journals.cc_modes import CcModeJournal, decode_cc_modes, encode_cc_modes

MODES = CcModeJournal("boot", {"0000:18:00.0": "on"})


def modes_of(data: bytes) -> CcModeJournal:
    return decode_cc_modes(data, "boot")


FORMS: list[tuple[object, bytes, Callable[[bytes], object]]] = [
    (MODES, encode_cc_modes(MODES), modes_of),
]
EACH = pytest.mark.parametrize(("value", "file", "decode"), FORMS, ids=lambda each: getattr(each, "__name__", ""))


@EACH
def test_what_was_written_is_read(value: object, file: bytes, decode: Callable[[bytes], object]) -> None:
    assert decode(file) == value


@EACH
def test_another_version_is_refused_by_its_number(
    value: object, file: bytes, decode: Callable[[bytes], object]
) -> None:
    for given_version in (b"0", b"2", b"-1"):
        changed = file.replace(b'"version":1', b'"version":' + given_version)
        changed = changed.replace(b'"version": 1', b'"version": ' + given_version)
        assert changed != file, value
        with pytest.raises(ValueError, match=f"version {given_version.decode()}, expected 1"):
            decode(changed)


@EACH
@pytest.mark.parametrize(
    "hostile", [b"", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"x":' * 100_000, b'{"version":"\xff"}']
)
def test_what_is_no_such_file_is_a_value_error(
    value: object, file: bytes, decode: Callable[[bytes], object], hostile: bytes
) -> None:
    assert file != hostile, value
    with pytest.raises(ValueError, match=r"."):
        decode(hostile)


@EACH
@given(data=st.data())
def test_a_file_that_is_cut_or_changed_anywhere_is_read_or_a_value_error(
    value: object, file: bytes, decode: Callable[[bytes], object], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(file)), label="start")
    end = data.draw(st.integers(start, len(file)), label="end")
    changed = file[:start] + data.draw(st.binary(max_size=4), label="in place of it") + file[end:]
    try:
        assert type(decode(changed)) is type(value)
    except ValueError:
        return
