"""Runs `dracaena controller` with less patience than clusters need, so that waits of minutes fit into tests.

It takes the controller's flags, and four more for what are constants there: --refused-wait-s, --passed-over-wait-s,
--exclusion-s, --longest-exclusion-s.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dracaena.controller.program import run
from dracaena.controller.settings import ControllerSettings
from dracaena.controller.wiring import upkeep_rules
from dracaena.process.settings import add_arguments, load

COMMAND: Final[tuple[str | Path, ...]] = (sys.executable, "-P", Path(__file__))


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of the controller."""
    own, parser = argparse.ArgumentParser(allow_abbrev=False), argparse.ArgumentParser()
    waits = ("refused-wait-s", "passed-over-wait-s", "exclusion-s", "longest-exclusion-s")
    for name in waits:
        own.add_argument(f"--{name}", type=float, dest=name)
    given, others = own.parse_known_args(arguments)
    refused_s, passed_over_s, first_s, longest_s = (getattr(given, name) for name in waits)
    add_arguments(parser, ControllerSettings)
    settings = load(ControllerSettings, parser.parse_args(others), os.environ)
    usual = upkeep_rules(settings)
    patience = replace(
        usual.patience,
        refused_s=refused_s or usual.patience.refused_s,
        passed_over_s=passed_over_s or usual.patience.passed_over_s,
    )
    growth = replace(
        usual.growth, first_s=first_s or usual.growth.first_s, longest_s=longest_s or usual.growth.longest_s
    )
    return run(settings, replace(usual, patience=patience, growth=growth))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
