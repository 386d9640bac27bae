"""How the systems before us choose GPUs on one node, flaws included, behind one signature.

Each module states the rules of one system as observed in its published source and reproduced by running it; nothing is
copied. Where a rule leaves room, the reading that is better for that system is taken, and its docstring says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from bench.baselines import first_fit, go_gpuallocator, gpu_manager, gsoc, hami, koordinator, mapa, topology_tree
from bench.baselines.answer import Choose

BASELINES: Final[Mapping[str, Choose]] = MappingProxyType(
    {
        "first fit": first_fit.lowest_first,
        "highest first": first_fit.highest_first,
        "go best-effort": go_gpuallocator.choose_best_effort,
        "go static": go_gpuallocator.choose_static,
        "gpu-manager": gpu_manager.choose,
        "gpu-manager fragment": gpu_manager.choose_fragment,
        "gpu-manager on text": gpu_manager.choose_on_text,
        "HAMi": hami.choose,
        "koordinator": koordinator.choose,
        "koordinator Honor": koordinator.choose_by_table,
        "GSoC best_effort": gsoc.choose_best_effort,
        "GSoC simple": gsoc.choose_simple,
        "topology tree": topology_tree.choose,
        "MAPA preserve": mapa.choose,
    }
)
"""All of them by the name that the tables show."""
