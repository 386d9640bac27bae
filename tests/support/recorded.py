"""The recorded machines that come with the product, and those of tests/fixtures/topologies."""

from __future__ import annotations

import json
from pathlib import Path

from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from dracaena.kubelet_plugin.discovery.topo.nvidia_smi_topo import decode_text, machine_from_matrix, parse_topo_matrix

FIXTURES = Path(__file__).parents[1] / "fixtures"


def recorded_machines() -> tuple[Machine, ...]:
    """All of them, in the order of their names within each folder."""
    truth = json.loads((FIXTURES / "topologies-truth.json").read_text(encoding="utf-8"))
    texts = sorted(name for name, facts in truth.items() if "refused_at_line" not in facts)
    return (
        *(read_machine(name) for name in machine_names()),
        *(
            machine_from_matrix(parse_topo_matrix(decode_text((FIXTURES / "topologies" / name).read_bytes())), name)
            for name in texts
        ),
    )
