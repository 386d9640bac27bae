from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import OurVgpu, VgpuLayout
from dracaena.kubelet_plugin.prepare.journals.layouts import LayoutJournal
from dracaena.kubelet_plugin.prepare.journals.vgpu_layouts import NOTHING_KNOWN, VGPU_JOURNAL, VgpuRecord

NAMES = st.text("abc-0:.", min_size=1, max_size=8)
LAYOUTS = st.builds(VgpuLayout, NAMES, st.dictionaries(NAMES, st.integers(1, 9), max_size=3))
VGPUS = st.lists(st.builds(OurVgpu, NAMES, NAMES, NAMES)).map(tuple)
RECORDS = st.builds(VgpuRecord, st.none() | LAYOUTS, VGPUS, st.none() | VGPUS)


@given(st.dictionaries(NAMES, RECORDS, max_size=4))
def test_what_is_written_is_read_again_in_the_same_boot_and_says_nothing_in_another(
    gpus: dict[str, VgpuRecord],
) -> None:
    journal = LayoutJournal("boot-1", NOTHING_KNOWN, gpus)
    assert VGPU_JOURNAL.decode(VGPU_JOURNAL.encode(journal), "boot-1") == journal
    assert VGPU_JOURNAL.decode(VGPU_JOURNAL.encode(journal), "boot-2").gpus == {}


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"\0", b'{"version":1}', b'{"version":2,"boot_id":"boot-1"}',
     b'{"version":1,"boot_id":"boot-1","gpus":{"a":{"made":[{"identity":1}]}}}'],
)  # fmt: skip
def test_what_cannot_be_read_is_told(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        VGPU_JOURNAL.decode(data, "boot-1")


def test_a_vgpu_is_noted_once_and_forgotten() -> None:
    one, again = OurVgpu("0000:81:04.0", "A", "1"), OurVgpu("0000:81:04.0", "B", "2")
    assert NOTHING_KNOWN.making(one).making(again).made == (again,)
    assert NOTHING_KNOWN.making(one).without(again) == NOTHING_KNOWN
