"""What is noted of modes, in its boot and in a later one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dracaena.kubelet_plugin.prepare.journals.cc_modes import ModeChange, ModeStep, NotedModes, RefusedMode

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
NOTED = st.builds(
    NotedModes,
    ADDRESSES,
    st.none() | CHANGES,
    st.none() | st.builds(RefusedMode, st.sampled_from(["on", "off"]), st.text()),
    st.booleans(),
)


@given(NOTED)
def test_in_a_later_boot_only_a_change_that_may_have_switched_something_is_left(noted: NotedModes) -> None:
    later = noted.after_boot()
    assert (later.modes, later.refused, later.asking) == ({}, None, False)
    if noted.change is None or noted.change.step is ModeStep.UNBINDING:
        assert later.change is None
    else:
        assert later.change is not None
        assert later.change.drivers == {}, "each boot binds them anew"
        assert (later.change.mode, later.change.before) == (noted.change.mode, noted.change.before)
