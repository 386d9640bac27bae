"""Runs the MPS supervisor as a process of its own, on compute modes that a file holds: they outlive a kill -9.

python -P -m support.mps_program ROOT DRIVER_ROOT MODES CHECK_S POLL_S
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from dracaena.api.errors import TemporaryError
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import ComputeMode
from dracaena.mps.program import MpsPauses, MpsProgram
from dracaena.mps.settings import MpsSettings
from dracaena.process.ending import hold_end_signals, wait_for_end_signal
from dracaena.process.logs import configure_logs
from support.mps_mounts import share_memory

ANSWER_S = 60.0
"""The fake control program starts within milliseconds, but for a machine that runs other tests too: it would then be
taken for silent, and its daemon be ended."""


class ModesInFile:
    """Implements ComputeModes. UUID → name of the mode; a GPU that is not in the file is lost."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refusal(self) -> str | None:
        return None

    def read(self, gpus: Collection[str]) -> Mapping[str, ComputeMode | str]:
        modes = self.all()
        return {gpu: modes.get(gpu, "it is lost") for gpu in sorted(gpus)}

    def all(self) -> dict[str, ComputeMode]:
        return {gpu: ComputeMode[name] for gpu, name in json.loads(self.path.read_text()).items()}

    def set(self, gpu: str, mode: ComputeMode) -> None:
        modes = self.all()
        if gpu not in modes:
            raise TemporaryError("it is lost")
        self.write({**modes, gpu: mode})

    def write(self, modes: Mapping[str, ComputeMode]) -> None:
        half = self.path.with_suffix(".half")
        half.write_text(json.dumps({gpu: mode.name for gpu, mode in modes.items()}))
        half.replace(self.path)


def main(arguments: Sequence[str]) -> int:
    root, driver_root, modes, check_s, poll_s = arguments
    hold_end_signals()
    configure_logs("info", "text")
    settings = MpsSettings(root=root, driver_root_mount=driver_root)
    shm = share_memory(MpsPlaces(root))
    registry, stored = CollectorRegistry(), ModesInFile(Path(modes))
    program = MpsProgram(
        settings,
        registry=registry,
        modes=stored,
        shm=shm,
        pauses=MpsPauses(ANSWER_S, float(check_s), float(poll_s)),
    )
    program.start()
    assert program.http is not None
    sys.stdout.write(f"port {program.http.port}\n")
    sys.stdout.flush()
    wait_for_end_signal()
    program.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
