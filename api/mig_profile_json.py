"""The part of a recorded machine that says how its GPUs can be divided: profiles by ordinals, placements as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import msgspec

from dracaena.api.errors import BadInputError
from dracaena.api.limits import DNS_LABEL_BYTES
from dracaena.api.machine import Gpu
from dracaena.api.mig_geometry import MigPlace, MigPlacement, MigProfile

_RANGES = re.compile(r"[0-9]{1,3}(?:-[0-9]{1,3})?(?:,[0-9]{1,3}(?:-[0-9]{1,3})?)*", re.ASCII)
_MOST = 256
"""Numbers in a range: no machine has as many GPUs, and no GPU as many memory slices."""
_NAME = re.compile(r"[0-9]{1,2}g\.[0-9]{1,4}gb(?:[+-][a-z0-9.]{1,8})?", re.ASCII)


class MachineJsonError(BadInputError):
    """A recorded machine cannot be read: where in the document, what was seen, what was expected."""


def profile_documents(gpus: Sequence[Gpu]) -> dict[str, list[dict[str, Any]]]:
    """Return the profiles of all GPUs that have any, with one entry for GPUs with the same profiles."""
    by_profiles: dict[tuple[MigProfile, ...], list[int]] = {}
    for ordinal, gpu in enumerate(gpus):
        if gpu.mig_profiles:
            by_profiles.setdefault(gpu.mig_profiles, []).append(ordinal)
    return {_ranges(ordinals): [_document(each) for each in known] for known, ordinals in by_profiles.items()}


def with_profiles(gpus: tuple[Gpu, ...], documents: Mapping[str, list[dict[str, Any]]]) -> tuple[Gpu, ...]:
    """Return the GPUs with the profiles that are given for them. Raises MachineJsonError."""
    found: dict[int, tuple[MigProfile, ...]] = {}
    for key, profiles in documents.items():
        path = f"$.mig_profiles[{key!r}]"
        ordinals = _numbers(key, path)
        twice = len(set(ordinals)) != len(ordinals) or not found.keys().isdisjoint(ordinals)
        wrong = next((number for number in ordinals if number >= len(gpus) or twice), None)
        if wrong is not None:
            raise MachineJsonError(f"not a recorded machine: {wrong} is not a GPU, or is listed twice - at `{path}`")
        read = tuple(_profile(each, f"{path}[{at}]") for at, each in enumerate(profiles))
        if len({profile.name for profile in read}) != len(read):
            raise MachineJsonError(f"not a recorded machine: two profiles share one name - at `{path}`")
        found.update(dict.fromkeys(ordinals, read))
    return tuple(replace(gpu, mig_profiles=found.get(ordinal, ())) for ordinal, gpu in enumerate(gpus))


def _document(profile: MigProfile) -> dict[str, Any]:
    by_size: dict[int, list[int]] = {}
    for place in profile.placements:
        by_size.setdefault(place.size, []).append(place.start)
    text = " ".join(f"{_ranges(starts)}:{size}" for size, starts in by_size.items())
    return {**asdict(profile), "placements": text}


def _profile(document: dict[str, Any], path: str) -> MigProfile:
    unknown = sorted(set(document) - {field.name for field in fields(MigProfile)})
    if unknown:
        raise MachineJsonError(f"not a recorded machine: unknown key {unknown[0]!r} - at `{path}`")
    text = document.get("placements")
    if not isinstance(text, str):
        raise MachineJsonError(f"not a recorded machine: expected placements such as `0-6:1` - at `{path}.placements`")
    try:
        placements = [{"start": each.start, "size": each.size} for each in _placements(text, f"{path}.placements")]
        profile = msgspec.convert({**document, "placements": placements}, MigProfile)
        profile.check()
    except (msgspec.ValidationError, ValueError) as error:
        raise MachineJsonError(f"not a recorded machine: {error} - at `{path}`") from error
    longest = max(len(MigPlace("0" * 36, profile, place).device_name) for place in profile.placements)
    if not _NAME.fullmatch(profile.name) or longest > DNS_LABEL_BYTES:
        raise MachineJsonError(f"not a recorded machine: {profile.name!r} is not a profile - at `{path}.name`")
    return profile


def _placements(text: str, path: str) -> Iterable[MigPlacement]:
    found = []
    for part in text.split():
        starts, colon, size = part.partition(":")
        if not colon or not size.isdecimal() or not 0 < int(size) < _MOST:
            raise MachineJsonError(f"not a recorded machine: {part!r} is not `starts:size` - at `{path}`")
        found += [MigPlacement(start, int(size)) for start in _numbers(starts, path)]
    return sorted(found)


def _numbers(text: str, path: str) -> list[int]:
    """Return the numbers of `0-3,6`."""
    if not _RANGES.fullmatch(text):
        raise MachineJsonError(f"not a recorded machine: {text!r}, expected numbers such as `0-3,6` - at `{path}`")
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] >= _MOST:
            raise MachineJsonError(f"not a recorded machine: {part!r} is not a range below {_MOST} - at `{path}`")
        found += numbers
    return found


def _ranges(numbers: Sequence[int]) -> str:
    """Write numbers, which ascend, as _numbers() reads them."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
