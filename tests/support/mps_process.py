"""`dracaena mps` as a process of its own over real processes of a fake driver."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from dracaena.api import mps
from dracaena.api.mps import MpsPhase, MpsShareRequest, MpsShareStatus
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.adapters.kernel.boot_id import read_boot_id
from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import ComputeMode, Role
from support import mps_program
from support.fake_mps import FakeCudaClient, FakeMps
from support.forked_programs import ForkedProgram
from support.mps_mounts import unmount_all
from support.mps_node import GPUS
from support.mps_program import ModesInFile

TESTS = Path(__file__).parent.parent
PATIENCE_S = 240.0
"""What never comes is said before pytest ends the test, which would not say it. No machine that runs other tests too is
so slow."""


class SupervisedNode:
    """The folders of a node with a fake driver, and the supervisor as a process. ask() does the plugin's part."""

    def __init__(
        self,
        root: str,
        folder: Path,
        protocol: int,
        gpus: tuple[str, ...] = GPUS,
        *,
        check_s: float = 0.5,
        poll_s: float = 0.02,
        forked: bool = False,
    ) -> None:
        """Settings of the supervisor in seconds; by default shorter than a node's, so that tests wait less.

        `forked` (support.forked_programs) is for where nobody asks what memory the process has.
        """
        self.places = MpsPlaces(root)
        self.fake = FakeMps(folder / "driver", gpus, protocol)
        self.modes = ModesInFile(folder / "modes.json")
        self.modes.write(dict.fromkeys(gpus, ComputeMode.DEFAULT))
        self.table = ProcProcessTable(self.places.pipes)
        self.requests = DocumentFolder(Path(root) / mps.REQUESTS, synced=False)
        self.process: subprocess.Popen[bytes] | ForkedProgram | None = None
        self.port = 0
        self._log = folder / "supervisor.log"
        self._pauses_s = (check_s, poll_s)
        self._forked = forked

    def start(self) -> None:
        self._log.unlink(missing_ok=True)
        process = self.process = self.begin(self._log)

        def said() -> re.Match[str] | None:
            return re.search(r"^port (\d+)\n", self._log.read_text(), re.MULTILINE)

        wait_for(lambda: said() is not None or process.poll() is not None, self._log.read_text)
        found = said()
        assert found is not None, self._log.read_text()
        self.port = int(found[1])

    def begin(self, log: Path) -> subprocess.Popen[bytes] | ForkedProgram:
        """Start a supervisor that prints to the end of a file."""
        arguments = [self.places.root, str(self.fake.root), str(self.modes.path), *map(str, self._pauses_s)]
        if self._forked:
            return ForkedProgram(arguments, log=log, main=mps_program.main)
        with log.open("ab") as stream:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "support.mps_program", *arguments],
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                stdout=stream,
                stderr=stream,
            )

    def end(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(timeout=PATIENCE_S)
        self.process = None

    def ask(self, number: int, share: str, percentage: int = 50, memory: int = 1024) -> str:
        name = mps.share_name(GPUS[number], share, share)
        request = MpsShareRequest(
            boot_id=read_boot_id(), gpu=GPUS[number], claim_uid=share, share_id=share,
            thread_percentage=percentage, pinned_memory_mib=memory,
        )  # fmt: skip
        self.requests.write(name + mps.SUFFIX, mps.encode(request))
        return name

    def withdraw(self, name: str) -> None:
        self.requests.remove(name + mps.SUFFIX)

    def status(self, name: str) -> MpsShareStatus | None:
        data = DocumentFolder(Path(self.places.root) / mps.STATUS).read(name + mps.SUFFIX)
        return mps.decode_status(data) if data is not None else None

    def ready(self, name: str, but: int = 0) -> MpsShareStatus:
        """Wait until a share is ready with another server than `but`."""
        found: list[MpsShareStatus] = []

        def look() -> bool:
            status = self.status(name)
            found[:] = [status] if status is not None else []
            return bool(found) and found[0].phase is MpsPhase.READY and found[0].server_pid != but

        wait_for(look, lambda: f"{found}")
        return found[0]

    def gone(self) -> None:
        """Wait until nothing of any share is left."""
        wait_for(lambda: not self.left(), lambda: str(self.left()))

    def left(self) -> list[str]:
        root = Path(self.places.root)
        names = [
            str(path)
            for folder in (mps.STATUS, "journal", "pipe", "shm", "kept")
            for path in (root / folder).glob("*/")
        ]
        # With protocol 3 the node's daemon takes its own files along; what it logs stays for people.
        names += [str(path) for path in (root / "pipe").glob("*") if path.name != "control"]
        names += [gpu for gpu, mode in self.modes.all().items() if mode is not ComputeMode.DEFAULT]
        return names + [str(process) for process in self.table.find()]

    def client(self, status: MpsShareStatus, pid: int) -> FakeCudaClient:
        """Connect as a container of the share would, from its mount."""
        return FakeCudaClient(status.mounts[0].host_path, pid)

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
            text: str = answer.read().decode()
            return text

    def kill_all(self) -> None:
        """End the supervisor, its daemons and servers."""
        if self.process is not None:
            self.end()
        for process in sorted(self.table.find(), key=lambda each: each.role is Role.SERVER):
            self.table.kill(process)
        unmount_all(self.places)


def wait_for(true: Callable[[], bool], what: Callable[[], str]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until_s, f"not within {PATIENCE_S:.0f} s: {what()}"
        time.sleep(0.02)
