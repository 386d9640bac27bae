"""The interface to the selector language: the rules here use it and know nothing about CEL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dracaena.api.resource_objects import DeviceAttribute
from dracaena.controller.allocation.legal.read.slices import PublishedDevice


@dataclass(frozen=True, slots=True)
class SelectorFailure:
    """A selector has no answer for a device, or is no expression at all. It never means "does not match"."""

    reason: str


class Selectors(Protocol):
    """Answers whether devices match CEL expressions. The same question has the same answer."""

    def evaluate(self, expression: str, device: PublishedDevice) -> bool | SelectorFailure:
        """Return whether the device matches, or why there is no answer. Never raises."""

    def derive(self, expression: str, device: PublishedDevice) -> DeviceAttribute | SelectorFailure:
        """Return the value of a derived attribute for the device, or why there is none. Never raises."""
