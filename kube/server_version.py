"""Which Kubernetes version an API server reports, and whether that is new enough for this program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError

OLDEST: Final = (1, 36)
"""Kubernetes that is needed: device taints, which keep kube-scheduler off our devices, are on by default since then."""


class _VersionAnswer(msgspec.Struct, rename="camel"):
    """The answer to GET /version. A server that was started with --emulated-version names that one too."""

    major: str = ""
    minor: str = ""
    emulation_major: str = ""
    emulation_minor: str = ""


msgspec.json.Decoder(_VersionAnswer)  # by the thread that imports: see kube.client


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """The version that a server reports. A server that emulates a version lacks what that version lacks."""

    version: tuple[int, int]
    is_emulated: bool = False


def server_version(client: KubeClient) -> ServerVersion | None:
    """Return the version that the server reports; None when it reports none. One read, which every user may do."""
    try:
        said = msgspec.json.decode(client.get_raw("/version"), type=_VersionAnswer)
        seen = _number(said.emulation_major or said.major), _number(said.emulation_minor or said.minor)
    except (KubeError, msgspec.MsgspecError, ValueError):
        return None
    return ServerVersion(seen, said.emulation_minor not in ("", said.minor))


def too_old(server: ServerVersion | None) -> str:
    """Say that the server is older than OLDEST, and what to do about it; nothing when it is not, or does not say."""
    if server is None or server.version >= OLDEST:
        return ""
    seen, emulated = server.version, " (by --emulated-version)" if server.is_emulated else ""
    return (
        f"the API server answers as Kubernetes {_text(seen)}{emulated}, and {_text(OLDEST)} or newer is needed: an "
        "admin has to update the control plane"
    )


def _number(text: str) -> int:
    """Read the number before a provider's own suffix, as in `36+`."""
    return int(text.rstrip("+"))


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
