"""The control daemon's answers in our terms, the same for both protocols."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dracaena.api.errors import TemporaryError


class ControlAnswerError(TemporaryError):
    """The control program answered something that its documentation does not have."""


class ServerState(Enum):
    """What a server reports about itself."""

    STARTING = "starting"
    """INITIALIZING: clients that connect wait."""
    READY = "ready"
    FAULT = "fault"
    """A client's fatal fault: new clients are refused (CUDA error 807) until all affected ones have left."""
    OTHER = "other"
    """An unknown word: not ready."""


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A running nvidia-cuda-mps-server."""

    pid: int
    state: ServerState
    word: str
    """The state in the daemon's word."""
    uid: int | None = None
    """Its owner, if the daemon reports it."""


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """What one share's clients may use. None: no limit."""

    thread_percentage: int | None = None
    pinned_memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class ClientSeen:
    """A process that is connected to a server. `namespace` is empty if the protocol has none."""

    pid: int
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ControlCommand:
    """One call of nvidia-cuda-mps-control: arguments, and what it reads on standard input."""

    arguments: tuple[str, ...] = ()
    standard_input: str = ""
    quotes_users: bool = False
    """Whether the answer contains text chosen by users, such as command lines: then no word in it can be trusted."""

    def __str__(self) -> str:
        return " ".join(self.arguments) or self.standard_input.strip()


def garbage(command: ControlCommand, answer: str, expected: str) -> ControlAnswerError:
    """Return the error for an answer that cannot be read."""
    shown = answer if len(answer) <= _SHOWN else f"{answer[:_SHOWN]}…"
    return ControlAnswerError(f"nvidia-cuda-mps-control answers {shown!r} to `{command}`, expected {expected}")


_SHOWN = 80
"""Most characters of a wrong answer that are shown."""


def process_ids(command: ControlCommand, answer: str) -> tuple[int, ...]:
    """Read an answer that consists of process ids, sorted."""
    words = answer.split()
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 1 << 22 for word in words):
        raise garbage(command, answer, "process ids")
    return tuple(sorted({int(word) for word in words}))
