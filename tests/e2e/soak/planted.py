"""Faults that are planted into copies of the controller, one at a time: does the soak find each of them?

`make e2e-soak-planted` runs a soak for each and prints a table; a unit test holds that each can still be planted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]

SOAK_S: Final = 240.0
"""Of faults for each: each big deed comes several times."""

SEED: Final = 20261122
"""The same deeds for all, in the same order."""

NOT_COPIED: Final = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "build", "dist")


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A change of the source that is a fault."""

    name: str
    file: str
    right: str
    """Stands in the file once."""
    wrong: str

    def plant(self, root: Path) -> None:
        """Change the file below a root. Raises AssertionError when it does not have what was right."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        assert text.count(self.right) == 1, f"{self.name}: {self.file} has {text.count(self.right)} times: {self.right}"
        path.write_text(text.replace(self.right, self.wrong), encoding="utf-8")


FAULTS: Final = (
    PlantedFault(
        "an allocation is cleared without a proof",
        "controller/lifecycle/tending.py",
        "    doubts = standing(about, unbound, now_s, bounds)\n",
        "    doubts = ()\n",
    ),
    PlantedFault(
        "the reservation is not dropped before",
        "controller/lifecycle/tending.py",
        "return _settle(record.stale_binds, naming, now_s, bounds) or Drop()",
        "return Clear()",
    ),
    PlantedFault(
        "a write without an answer is given up at once",
        "controller/wiring.py",
        "DOUBT_S: Final = WRITE_TIMEOUT_S + 2.0",
        "DOUBT_S: Final = 0.0",
    ),
    PlantedFault(
        "what is decided is not held",
        "controller/lifecycle/claim_record.py",
        "devices, others = devices | self.share.devices, others | self.share.others",
        "pass",
    ),
    PlantedFault(
        "a new leader does not list claims anew",
        "controller/leader/takeover.py",
        "    claims.begin_list()\n    return _until(claims.wait_listed, stopping)\n",
        "    return True\n",
    ),
    PlantedFault(
        "a new leader begins while writes of the old one may land",
        "controller/leader/election.py",
        "self._clock.monotonic() + wait_s)",
        "self._clock.monotonic())",
    ),
    PlantedFault(
        "an older state of a claim counts as news",
        "controller/state/records.py",
        "if version_of(claim) <= record.version and record.version:",
        "if version_of(claim) == record.version and record.version:",
    ),
    PlantedFault(
        "nothing is taken back",
        "controller/lifecycle/prospects.py",
        "    unreserved = [claim.unreserved_s",
        "    return LOOK_S\n    unreserved = [claim.unreserved_s",
    ),
    PlantedFault(
        "what nobody uses stays allocated",
        "controller/lifecycle/tending.py",
        "    if record.phase is Phase.UNRESERVED and ours:\n",
        "    if record.phase is Phase.UNRESERVED and ours and naming.unbound:\n",
    ),
    PlantedFault(
        "a freed device wakes nobody",
        "controller/state/cluster.py",
        "        if freed:\n            self.decisions.devices_freed(self._nodes_of(freed)",
        "        if False:\n            self.decisions.devices_freed(self._nodes_of(freed)",
    ),
    PlantedFault(
        "half of a decision stays",
        "controller/reconciler.py",
        "        if half_written and (begun",
        "        if False and (begun",
    ),
    PlantedFault(
        "a node where an allocation led nowhere is tried again at once",
        "controller/lifecycle/pod_record.py",
        "if wait.again_s > now_s}",
        "if wait.again_s > now_s + 1e9}",
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Run a soak for each fault and print whether it was found; the exit code is 1 if fewer than `--at-least` were."""
    parser = argparse.ArgumentParser(prog="python -m e2e.soak.planted", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SOAK_S, help="of faults for each (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="faults whose name has this")
    parser.add_argument("--at-least", type=int, default=0, help="how many have to be found")
    options = parser.parse_args(arguments)
    chosen = [fault for fault in FAULTS if options.only in fault.name]
    found = 0
    for fault in chosen:
        began_s = time.monotonic()
        violation = _soak(fault, options.seconds, options.seed)
        found += violation is not None
        took_s = time.monotonic() - began_s
        _say(f"{'found' if violation else 'NOT FOUND':9}  {took_s:4.0f} s  {fault.name}: {violation or ''}")
    _say(f"{found} of {len(chosen)} planted faults were found")
    return 0 if found >= options.at_least else 1


def _soak(fault: PlantedFault, seconds: float, seed: int) -> str | None:
    """Return what the soak said first of a violation, None when it found none."""
    with tempfile.TemporaryDirectory(prefix="dracaena-planted-") as folder:
        root = Path(folder) / "copy"
        shutil.copytree(ROOT, root, symlinks=True, ignore=NOT_COPIED)
        fault.plant(root)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "e2e.soak.run", f"--seconds={seconds}", f"--seed={seed}", "--violations=1"],
            env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root / 'tests'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith("VIOLATION")]
    return lines[0] if lines else f"exit code {done.returncode}: {done.stdout[-500:]}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
