"""A web-config file that may change while it is used: certificates are rotated, users come and go."""

from __future__ import annotations

from pathlib import Path

import structlog

from dracaena.api.errors import BadInputError
from dracaena.process.clock import Clock
from dracaena.process.web_config import WebConfig, decode_web_config, read_sources

LOOK_EVERY_S = 1.0
"""Shortest time between two looks: reading the files takes 0.1 ms, and connections may be many."""

log = structlog.get_logger()


class WebConfigFile:
    """What the file says now. Not for several threads."""

    def __init__(self, path: str, clock: Clock) -> None:
        """`path` empty: nothing is protected, ever. Raises BadInputError naming the field that is wrong."""
        self._path = Path(path) if path else None
        self._clock = clock
        self._looked_s = clock.monotonic()
        self._trouble = ""
        self._config = WebConfig()
        if self._path is not None:
            self._sources = read_sources(self._path)
            self._config = decode_web_config(self._path, self._sources)

    def current(self) -> WebConfig:
        """Return what holds: the newest that could be read, at most LOOK_EVERY_S old."""
        now_s = self._clock.monotonic()
        if self._path is not None and now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._look(self._path)
        return self._config

    def _look(self, path: Path) -> None:
        try:
            sources = read_sources(path)
            if sources != self._sources:
                self._config, self._sources = decode_web_config(path, sources), sources
                log.info("web-config file was reloaded", file=str(path))
            self._trouble = ""
        except Exception as error:
            # Whatever it raises: this runs in the thread that serves. The old rules stay in force: dropping TLS or the
            # passwords would open the pages, and if we stopped serving, kubelet would end the program.
            if str(error) != self._trouble:
                self._trouble = str(error)
                known = isinstance(error, BadInputError)
                log.error(
                    "web-config file cannot be used, the former one stays in use",
                    error=self._trouble,
                    exc_info=not known,
                )
