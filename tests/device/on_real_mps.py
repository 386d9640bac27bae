"""The driver's own nvidia-cuda-mps-control, held to what the fake is held to: `make device-test`.

It needs root, one GPU that nobody uses, and starts daemons in a folder of its own; it changes no compute mode.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator

import pytest

from dracaena.mps.adapters.control_program import ControlProgram
from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import Role
from dracaena.mps.ports import ControlError, ControlSilentError
from dracaena.mps.protocol import v3
from support.mps_contract import make_folders, speaks_protocol_2, speaks_protocol_3
from support.mps_mounts import share_memory

pytestmark = pytest.mark.skipif(
    ControlProgram("/", "/", share_memory(MpsPlaces("/")).enter).missing() is not None,
    reason="no nvidia-cuda-mps-control on this machine",
)


@pytest.fixture
def places() -> Iterator[MpsPlaces]:
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        places = MpsPlaces(folder)
        yield places
        table = ProcProcessTable(places.pipes)
        for process in sorted(table.find(), key=lambda each: each.role is Role.SERVER):
            table.kill(process)


@pytest.fixture
def gpu() -> str:
    asked = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]


def test_protocol_2(places: MpsPlaces, gpu: str) -> None:
    make_folders(places, gpu)
    shm = share_memory(places)
    speaks_protocol_2(ControlProgram("/", places.root, shm.enter), places, shm, gpu, None)


def test_protocol_3(places: MpsPlaces, gpu: str) -> None:
    make_folders(places, gpu)
    control = ControlProgram("/", places.root, share_memory(places).enter)
    try:
        usage = control.run(v3.ask_help(), places.pipes)
    except ControlSilentError:
        raise  # a program that hangs is a finding, whatever protocol it speaks
    except ControlError as error:
        pytest.skip(f"an older driver refuses the flag of protocol 3: {error}")
    if not v3.knows_protocol_3(usage):
        pytest.skip("this driver has no protocol 3")
    speaks_protocol_3(control, places, gpu, None)
