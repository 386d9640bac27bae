"""Executes single steps. Each is idempotent and may be interrupted at any point: the next look shows what is left."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import V3, ModeJournal, MpsStep, StepKind
from dracaena.mps.ports import (
    ControlError,
    DaemonGoneError,
    MpsPorts,
)
from dracaena.mps.protocol import v2, v3
from dracaena.mps.protocol.seen import ControlCommand
from dracaena.process.clock import Clock

ANSWERS_S = 5.0
"""How long a started daemon may take to answer. It binds its socket within milliseconds."""

POLL_S = 0.05


class Executor:
    """Executes steps. Used by one thread."""

    def __init__(
        self,
        ports: MpsPorts,
        places: MpsPlaces,
        clock: Clock,
        *,
        boot_id: str,
        multi_user: bool,
    ) -> None:
        self._control, self._processes, self._modes, self._files = (
            ports.control, ports.processes, ports.modes, ports.files,
        )  # fmt: skip
        modes, files, shm = ports.modes, ports.files, ports.shm
        self._places, self._clock = places, clock
        self._boot_id, self._multi_user = boot_id, multi_user
        self._never = threading.Event()
        self._do: dict[StepKind, Callable[[MpsStep], object]] = {
            StepKind.JOURNAL_MODE: lambda step: files.write_journal(ModeJournal(step.gpu, boot_id, step.mode)),
            StepKind.SET_MODE: lambda step: modes.set(step.gpu, step.mode),
            StepKind.RESTORE_MODE: lambda step: modes.set(step.gpu, step.mode),
            StepKind.FORGET_MODE: lambda step: files.remove_journal(step.gpu),
            StepKind.MAKE_FOLDERS: lambda step: files.make_folders(step.gpu),
            StepKind.KEEP_PIPES: lambda step: files.keep_pipes(step.gpu),
            StepKind.RESTORE_PIPES: lambda step: files.restore_pipes(step.gpu),
            StepKind.MOUNT_SHM: lambda step: shm.mount(step.gpu),
            StepKind.UNMOUNT_SHM: lambda step: shm.unmount(step.gpu),
            StepKind.REMOVE_FOLDERS: lambda step: files.remove_folders(step.gpu),
            StepKind.KILL: self._kill,
        }

    def _kill(self, step: MpsStep) -> None:
        if step.process is not None:
            self._processes.kill(step.process)

    def do(self, step: MpsStep, protocol: int) -> None:
        """Execute a step. Raises DracaenaError if it fails."""
        if step.kind in self._do:
            self._do[step.kind](step)
        elif protocol == V3:
            self._do_v3(step)
        else:
            self._do_v2(step)

    def _do_v2(self, step: MpsStep) -> None:
        gpu, pipes = step.gpu, self._places.pipes_of(step.gpu)
        if step.kind is StepKind.START_DAEMON:
            logs = self._places.logs_of(gpu)
            self._files.forget_pipes(gpu)
            self._control.start(v2.start_daemon(multi_user=self._multi_user), pipes, logs, gpu)
            self._wait_for_answer(v2.list_servers(), pipes, logs)
            return
        for command in self._v2_commands(step):
            self._control.run(command, pipes)

    def _v2_commands(self, step: MpsStep) -> tuple[ControlCommand, ...]:
        if step.kind is StepKind.STOP_DAEMON:
            return (v2.quit_daemon(),)
        if step.kind is StepKind.START_SERVER:
            return (v2.start_server(step.number),)
        if step.kind is StepKind.SET_DEFAULTS:
            return v2.set_defaults(step.gpu, step.limits)
        assert step.kind is StepKind.SET_OF_SERVER, step
        return v2.set_of_server(step.number, step.gpu, step.limits)

    def _do_v3(self, step: MpsStep) -> None:
        pipes = self._places.pipes
        if step.kind is StepKind.START_DAEMON:
            self._control.start(v3.start_daemon(multi_user=self._multi_user), pipes, self._places.logs, "")
            self._wait_for_answer(v3.list_servers(), pipes, self._places.logs)
            return
        self._control.run(self._v3_command(step), pipes)

    def _v3_command(self, step: MpsStep) -> ControlCommand:
        if step.kind is StepKind.STOP_DAEMON:
            return v3.quit_daemon()
        if step.kind is StepKind.START_SERVER:
            return v3.create_server(step.gpu, step.number)
        if step.kind is StepKind.STOP_SERVER:
            return v3.delete_server(step.gpu)
        if step.kind is StepKind.CREATE_NAMESPACE:
            return v3.create_namespace(step.gpu, step.share)
        if step.kind is StepKind.LIMIT_NAMESPACE:
            return v3.limit_namespace(step.gpu, step.share, step.limits)
        assert step.kind is StepKind.DELETE_NAMESPACE, step
        return v3.delete_namespace(step.gpu, step.share)

    def _wait_for_answer(self, command: ControlCommand, pipes: str, logs: str) -> None:
        until_s = self._clock.monotonic() + ANSWERS_S
        while True:
            try:
                self._control.run(command, pipes)
            except DaemonGoneError as error:
                if self._clock.monotonic() < until_s:
                    self._clock.sleep_until_set(self._never, POLL_S)
                    continue
                said = self._control.last_words(logs)
                raise ControlError(
                    f"the MPS control daemon ended right after its start; its log says: {said or 'nothing'}"
                ) from error
            return
