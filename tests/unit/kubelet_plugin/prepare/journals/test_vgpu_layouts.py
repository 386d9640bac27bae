from __future__ import annotations

from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import OurVgpu
from dracaena.kubelet_plugin.prepare.journals.vgpu_layouts import NOTHING_KNOWN


def test_a_vgpu_is_noted_once_and_forgotten() -> None:
    one, again = OurVgpu("0000:81:04.0", "A", "1"), OurVgpu("0000:81:04.0", "B", "2")
    assert NOTHING_KNOWN.making(one).making(again).made == (again,)
    assert NOTHING_KNOWN.making(one).without(again) == NOTHING_KNOWN
