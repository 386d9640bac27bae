"""The journal of modes from its text and back, in its boot and in another one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.kubelet_plugin.prepare.journals.cc_modes import (
    CcModeJournal,
    ModeChange,
    ModeStep,
    RefusedMode,
    decode_cc_modes,
    encode_cc_modes,
)

ADDRESSES = st.dictionaries(st.sampled_from(["0000:18:00.0", "0000:3b:00.0"]), st.sampled_from(["on", "off", ""]))
CHANGES = st.builds(
    ModeChange,
    st.sampled_from(["on", "off", ""]),
    st.sampled_from(ModeStep),
    ADDRESSES,
    ADDRESSES,
    st.text(),
    st.text(),
)
JOURNALS = st.builds(
    CcModeJournal,
    st.just("boot"),
    ADDRESSES,
    st.none() | CHANGES,
    st.none() | st.builds(RefusedMode, st.sampled_from(["on", "off"]), st.text()),
    st.booleans(),
)


@given(JOURNALS)
def test_what_is_written_is_read(journal: CcModeJournal) -> None:
    assert decode_cc_modes(encode_cc_modes(journal), "boot") == journal


@given(JOURNALS)
def test_in_another_boot_only_a_change_that_may_have_switched_something_is_left(journal: CcModeJournal) -> None:
    later = decode_cc_modes(encode_cc_modes(journal), "later")
    assert (later.boot_id, later.modes, later.refused, later.asking) == ("later", {}, None, False)
    if journal.change is None or journal.change.step is ModeStep.UNBINDING:
        assert later.change is None
    else:
        assert later.change is not None
        assert later.change.drivers == {}, "each boot binds them anew"
        assert (later.change.mode, later.change.before) == (journal.change.mode, journal.change.before)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"version":2,"boot_id":"b"}', b'{"version":1}', b"[" * 100_000])
def test_what_is_no_journal_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any words
        decode_cc_modes(data, "b")
