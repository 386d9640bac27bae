"""The versions of Kubernetes that this server can answer as."""

from __future__ import annotations

from typing import Final

RELEASES: Final = {"1.37": "v1.37.1", "1.36": "v1.36.3"}
"""Version → the release whose answers were recorded (tests/transcripts)."""

NEWEST: Final = "1.37"
