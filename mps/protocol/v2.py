"""Protocol 2: one daemon per GPU, commands on standard input. Every driver with MPS has it.

Sources: NVIDIA's MPS documentation, "Legacy MPS v2 Interface", and the manual page nvidia-cuda-mps-control(1).

* Defaults apply to servers that start later, and end with the daemon; `set_… PID` applies to new clients of a running
  server. So both are set. They are the same for all clients of the GPU: a ceiling over its shares. Each share has its
  own limits in the environment of its containers, which can only lower them.
* One server per user id is active; with -multiuser-server clients of all users share one that runs as root.
* `<dev>` is not checked by the daemon. We give the UUID in both commands, because a limit that is set by UUID is not
  found by ordinal.
"""

from __future__ import annotations

import re

from dracaena.mps.protocol.seen import ControlCommand, ServerSeen, ServerState, ShareLimits, garbage, process_ids

QUIT_S = 5
"""Seconds that the daemon gives its servers to end. Their clients' pods have ended by then; remaining work is lost."""

_WORDS = {
    "INITIALIZING": ServerState.STARTING,
    "ACTIVE": ServerState.READY,
    "FAULT": ServerState.FAULT,
}
_UNITS_MIB = {"G": 1 << 10, "M": 1}


def start_daemon(*, multi_user: bool) -> ControlCommand:
    """Start the daemon in the background."""
    return ControlCommand(("-d", "-multiuser-server") if multi_user else ("-d",))


def quit_daemon() -> ControlCommand:
    """End the daemon and its servers, by force after QUIT_S."""
    return _command(f"quit -t {QUIT_S}")


def list_servers() -> ControlCommand:
    """Ask for the process ids of all servers."""
    return _command("get_server_list")


def server_status(pid: int) -> ControlCommand:
    """Ask for a server's state."""
    return _command(f"get_server_status {pid}")


def list_clients(pid: int) -> ControlCommand:
    """Ask for the process ids of a server's clients."""
    return _command(f"get_client_list {pid}")


def start_server(uid: int) -> ControlCommand:
    """Start a server without waiting for a client."""
    return _command(f"start_server -uid {uid}")


def set_defaults(gpu: str, limits: ShareLimits) -> tuple[ControlCommand, ...]:
    """Set the limits of servers that start later. There is no way to unset a memory limit: see needs_new_daemon()."""
    commands = [_command(f"set_default_active_thread_percentage {_percentage(limits)}")]
    if limits.pinned_memory_mib is not None:
        commands.append(_command(f"set_default_device_pinned_mem_limit {gpu} {limits.pinned_memory_mib}M"))
    return tuple(commands)


def set_of_server(pid: int, gpu: str, limits: ShareLimits) -> tuple[ControlCommand, ...]:
    """Set the limits of clients that connect to a running server from now on."""
    commands = [_command(f"set_active_thread_percentage {pid} {_percentage(limits)}")]
    if limits.pinned_memory_mib is not None:
        commands.append(_command(f"set_device_pinned_mem_limit {pid} {gpu} {limits.pinned_memory_mib}M"))
    return tuple(commands)


def ask_defaults(gpu: str) -> tuple[ControlCommand, ControlCommand]:
    """Ask for what set_defaults() has set."""
    return (
        _command("get_default_active_thread_percentage"),
        _command(f"get_default_device_pinned_mem_limit {gpu}"),
    )


def ask_of_server(pid: int, gpu: str) -> tuple[ControlCommand, ControlCommand]:
    """Ask for what set_of_server() has set."""
    return (
        _command(f"get_active_thread_percentage {pid}"),
        _command(f"get_device_pinned_mem_limit {pid} {gpu}"),
    )


def read_servers(answer: str) -> tuple[int, ...]:
    """Read the answer to list_servers(), sorted. Raises ControlAnswerError."""
    return process_ids(list_servers(), answer)


def read_clients(pid: int, answer: str) -> tuple[int, ...]:
    """Read the answer to list_clients(), sorted. Raises ControlAnswerError."""
    return process_ids(list_clients(pid), answer)


def read_status(pid: int, answer: str) -> ServerSeen:
    """Read the answer to server_status(). Raises ControlAnswerError if it is not a single word."""
    word = answer.strip()
    if not re.fullmatch(r"[A-Za-z_]{1,40}", word):
        raise garbage(server_status(pid), answer, f"one of {', '.join(_WORDS)}")
    return ServerSeen(pid, _WORDS.get(word.upper(), ServerState.OTHER), word)


def read_percentage(command: ControlCommand, answer: str) -> int:
    """Read an active thread percentage: the daemon prints `100.0`. Raises ControlAnswerError."""
    found = re.fullmatch(r"\s*(\d{1,3})(\.\d+)?\s*", answer, re.ASCII)
    if found is None or not 0 < int(found[1]) <= 100:
        raise garbage(command, answer, "a percentage")
    return int(found[1])


def read_memory_mib(command: ControlCommand, answer: str) -> int | None:
    """Read a memory limit in MiB, None if there is none. NVIDIA's documentation has no example: `10G`, `10GB` and
    `512M` are read; an empty answer and words without a digit mean that none is set. Raises ControlAnswerError.
    """
    text = answer.strip()
    if not re.search(r"\d", text):
        return None
    found = re.fullmatch(r"(\d{1,9})\s*([GM])B?", text, re.ASCII)
    if found is None:
        raise garbage(command, answer, "a number of G or M")
    return int(found[1]) * _UNITS_MIB[found[2]]


def _percentage(limits: ShareLimits) -> int:
    return 100 if limits.thread_percentage is None else limits.thread_percentage


def _command(line: str) -> ControlCommand:
    return ControlCommand((), line + "\n")
