"""The command: compare a server with the committed transcripts, or write them anew."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dracaena.demo.apiserver.version import NEWEST, RELEASES
from transcripts.connection import Ground
from transcripts.etcd import compact
from transcripts.recording import difference, keep, record
from transcripts.scenarios import SCENARIOS


def main() -> int:
    """Run the command line: 0 when nothing differs or all was written, 1 when something differs."""
    parser = argparse.ArgumentParser(prog="python -m transcripts", description=__doc__)
    parser.add_argument("--server", required=True, metavar="URL", help="an API server that nobody else writes to")
    parser.add_argument("--token-file", type=Path, required=True, help="file with the administrator's token")
    parser.add_argument(
        "--authority", type=Path, required=True, help="certificate that the server's is checked against"
    )
    parser.add_argument("--etcd", required=True, metavar="URL", help="its etcd, which is compacted")
    parser.add_argument("--kubernetes", choices=RELEASES, default=NEWEST, help="version of the server (%(default)s)")
    parser.add_argument("--write", action="store_true", help="write the transcripts instead of comparing")
    parser.add_argument("scenario", nargs="*", help="names of scenarios; all without one")
    options = parser.parse_args()
    token = options.token_file.read_text(encoding="utf-8").strip()
    ground = Ground(options.server, token, options.authority, lambda: compact(options.etcd))
    differing = 0
    for scenario in SCENARIOS:
        if options.scenario and scenario.name not in options.scenario:
            continue
        text = record(scenario, ground)
        found = difference(scenario, options.kubernetes, text)
        differing += bool(found)
        if options.write:
            keep(scenario, options.kubernetes, text)
        sys.stdout.write(found)
    sys.stdout.write(f"{differing} of {len(SCENARIOS)} scenarios differ\n")
    return int(bool(differing) and not options.write)


if __name__ == "__main__":
    sys.exit(main())
