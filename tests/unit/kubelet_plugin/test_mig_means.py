from __future__ import annotations

import pytest

from dracaena.api.errors import BadInputError
from dracaena.kubelet_plugin.mig_means import mig_means
from dracaena.kubelet_plugin.own_places import OwnPlaces
from dracaena.kubelet_plugin.settings import PluginSettings
from support.clock import FakeClock
from support.plugin import make_pool


def test_a_recorded_machine_cannot_be_divided_on_demand_and_the_setting_is_refused() -> None:
    settings = PluginSettings(node_name="node-1", machine="hgx-h100", mig="onDemand")
    with pytest.raises(BadInputError, match="mig=onDemand needs the GPUs of this node"):
        mig_means(settings, None, None, make_pool, OwnPlaces(FakeClock()))


def test_by_default_nothing_divides_a_gpu() -> None:
    settings = PluginSettings(node_name="node-1", machine="hgx-h100")
    assert mig_means(settings, None, None, make_pool, OwnPlaces(FakeClock())) == {}
