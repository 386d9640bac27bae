"""The API of the bench: the embedded server in a process of its own, so that it takes no time from who measures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from dracaena.demo.apiserver import ApiServer


@contextmanager
def embedded_api(kubeconfig: Path) -> Iterator[None]:
    """Run it inside a block and write how to reach it."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "bench.node.api"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        kubeconfig.write_text(process.stdout.readline(), encoding="utf-8")
        yield
    finally:
        process.communicate()  # closes its input: it ends
        process.wait()


def main() -> int:
    """Serve until the input ends; print the kubeconfig in one line of JSON, which is YAML as well."""
    with ApiServer() as server:
        print(yaml.safe_dump(server.kubeconfig(), default_flow_style=True, width=float("inf")).strip(), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
