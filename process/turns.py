"""What waits for a thread that does one thing at a time: addresses take turns, and none takes all places."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """Something that a client waits for."""

    @property
    def wanted(self) -> Callable[[], bool]:
        """Say whether the client still waits."""
        ...


W = TypeVar("W", bound=Queued)


class Turns(Generic[W]):
    """Lines by address. It has no lock: its owner holds one around each call."""

    def __init__(self, *, most_of_address: int, most: int) -> None:
        self._most_of_address, self._most = most_of_address, most
        self._lines: dict[str, deque[W]] = {}  # by address, in the order of their turns

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, queued: W, address: str) -> bool:
        """Let something wait; return False, without doing so, if too much already waits of the address or in total."""
        self._drop_unwanted()
        line = self._lines.get(address, deque())
        if len(line) >= self._most_of_address or len(self) >= self._most:
            return False
        line.append(queued)
        self._lines[address] = line
        return True

    def take(self) -> W | None:
        """Return what is next and still wanted, and put its address behind all others. None: nothing waits."""
        self._drop_unwanted()
        if not self._lines:
            return None
        address = next(iter(self._lines))
        line = self._lines.pop(address)
        taken = line.popleft()
        if line:
            self._lines[address] = line
        return taken

    def _drop_unwanted(self) -> None:
        kept = {address: deque(each for each in line if each.wanted()) for address, line in self._lines.items()}
        self._lines = {address: line for address, line in kept.items() if line}
