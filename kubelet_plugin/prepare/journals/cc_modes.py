"""What is noted of the modes of confidential computing of this node's GPUs, and of a change of them.

A mode survives a reboot, and so may an interrupted change: then some GPUs are in the new mode and some are not. Each
boot rebinds the drivers, and modes are read again after it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

NO_MODE: Final = ""
"""Mode of a change that is no longer wanted, and could be neither finished nor rolled back."""


class ModeStep(enum.Enum):
    """The progress of a change."""

    UNBINDING = "unbinding"
    """The drivers of the GPUs are noted, any GPU may have lost its driver, and no mode was touched."""
    SWITCHING = "switching"
    """The old modes are noted, and each GPU may be in the old or new mode, now or after its next reset."""
    BINDING = "binding"
    """All GPUs are in one mode, as read after the last reset; any GPU may have its driver back."""
    STUCK = "stuck"
    """The GPUs could be brought neither into the new mode nor back. An admin has to act."""


@dataclass(frozen=True, slots=True)
class ModeChange:
    """A change of all GPUs of a node."""

    mode: str
    """The mode they should get, one of CC_MODES; in BINDING the mode they are in. NO_MODE: see there."""
    step: ModeStep
    drivers: Mapping[str, str] = field(default_factory=dict)
    """PCI address of each GPU → the driver that it had, "" for none. No entries after a reboot."""
    before: Mapping[str, str] = field(default_factory=dict)
    """PCI address → mode before the change, from SWITCHING on."""
    problem: str = ""
    """What went wrong; in BINDING: the GPUs were rolled back to their old mode."""
    refused: str = ""
    """In BINDING after a rollback: the mode that could not be reached."""


@dataclass(frozen=True, slots=True)
class RefusedMode:
    """A mode that was tried or requested and cannot be reached. It is not retried while the label keeps naming it."""

    mode: str
    problem: str


@dataclass(frozen=True, slots=True)
class NotedModes:
    """What is known of all GPUs."""

    modes: Mapping[str, str] = field(default_factory=dict)
    """PCI address → mode, as NVIDIA's program read it in this boot, if nothing since could have changed it."""
    change: ModeChange | None = None
    refused: RefusedMode | None = None
    asking: bool = False
    """Whether the modes of unused GPUs are being read: no claim may get one of these meanwhile."""

    def after_boot(self) -> NotedModes:
        """Return the part of this that holds in a later boot."""
        change = self.change
        if change is not None:
            change = None if change.step is ModeStep.UNBINDING else replace(change, drivers={})
        return NotedModes(change=change)
