"""A real Prometheus, filled with samples instead of by scrapes, that answers for what dashboards ask."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.binaries import cache_root, prometheus
from page.drawn_dashboard import Answer
from support.dashboards import LABEL_VALUES

START_S: Final = 60.0
"""It answers within a second on a free machine."""

RESOLUTION_S: Final = 60
"""Of what is drawn: a panel of some 500 pixels shows 180 points of 3 hours."""


LOOKBACK_S: Final = 45
"""How old the last sample of a series may be: more than the pause between two."""


@dataclass(frozen=True, slots=True)
class FilledPrometheus:
    """A server, and the time that it is asked about."""

    url: str
    begin_s: float
    end_s: float

    def ask(self, query: str, instant: bool) -> tuple[Answer, ...]:
        """Return the series of a query over the whole time, or of its end alone."""
        if instant:
            found = self._get("query", query=query, time=self.end_s)["result"]
            return tuple(Answer(each["metric"], (_point(each["value"]),)) for each in found)
        times = {"start": self.begin_s, "end": self.end_s, "step": RESOLUTION_S}
        found = self._get("query_range", query=query, **times)["result"]
        return tuple(Answer(each["metric"], tuple(map(_point, each["values"]))) for each in found)

    def label_values(self, asked: str) -> tuple[str, ...]:
        """Return what a dashboard's variable offers, sorted: `label_values(SELECTOR, LABEL)`."""
        parts = LABEL_VALUES.fullmatch(asked)
        assert parts, asked
        window = {"match[]": parts[1], "start": self.begin_s, "end": self.end_s}
        return tuple(sorted(self._get(f"label/{parts[2]}/values", **window)))

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _get(self, path: str, **asked: Any) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(asked)}", timeout=30) as answer:
            return json.load(answer)["data"]


def _point(told: list[Any]) -> tuple[float, float]:
    return float(told[0]), float(told[1])


@contextmanager
def filled_prometheus(samples: Path, folder: Path, *, begin_s: float, end_s: float) -> Iterator[FilledPrometheus]:
    """Run one on samples in OpenMetrics's form; the folder holds its files. Builds the programs where they are not."""
    programs = prometheus(cache_root(os.environ))
    subprocess.run(
        [programs / "promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", samples, folder / "data"],
        check=True,
    )
    (folder / "prometheus.yaml").write_text("{}\n", encoding="utf-8")
    port = _free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                programs / "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--storage.tsdb.retention.time=100y",
                # A scrape marks series that have ended; samples in this form cannot.
                f"--query.lookback-delta={LOOKBACK_S}s",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            server = FilledPrometheus(f"http://127.0.0.1:{port}", begin_s, end_s)
            until_s = time.monotonic() + START_S
            while not server.is_ready():
                told = (folder / "prometheus.log").read_text(encoding="utf-8", errors="replace")
                assert process.poll() is None, told
                assert time.monotonic() < until_s, told
                time.sleep(0.1)
            yield server
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
