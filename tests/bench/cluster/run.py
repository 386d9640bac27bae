"""`make bench-cluster`: pods bound per second with our controller beside kube-scheduler, and with kube-scheduler alone.

Real etcd, kube-apiserver, kube-controller-manager and kube-scheduler in namespaces of their own (e2e.isolation); nodes
are made up, so nothing runs the pods. Exit status: 1 when a floor is broken, 77 when a prerequisite is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Final

from bench.cluster.figures import ALONE, Run, section
from bench.cluster.world import Side, World, most_pods
from bench.report import Progress, Section, as_document, as_text, floors_as_text
from e2e import isolation
from e2e.run import BINARIES
from e2e.standalone import binaries_folder, logs_folder, run_alone

NODES: Final = (100, 1_000, 5_000)
RUNS: Final = {5_000: 1}
RUNS_ELSE: Final = 3
PODS: Final = {100: 900}
PODS_ELSE: Final = 1_500
"""Pods of each side, by number of nodes: so many keep either side busy for 10 s or longer. Where they do not fit at
once a side takes several rounds."""


def main(arguments: Sequence[str]) -> int:
    """Start the isolated run, or be it."""
    options = _parser().parse_args(arguments)
    if BINARIES not in os.environ:
        return run_alone("bench.cluster.run", arguments, name="bench-cluster")
    return _measure(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-cluster", description=__doc__)
    parser.add_argument("--nodes", type=_numbers, default=NODES, help="numbers of made-up nodes (100,1000,5000)")
    parser.add_argument("--runs", type=int, help="runs of each side (3; at 5,000 nodes 1)")
    parser.add_argument("--pods", type=int, help="pods of each side and run (1500; at 100 nodes 900)")
    parser.add_argument("--seed", type=int, default=1, help="decides the order of the pods (%(default)s)")
    parser.add_argument(
        "--ours",
        action="append",
        metavar="FLAGS",
        help="settings of our controller, in quotes; several times: as many sides, of which the first is judged",
    )
    parser.add_argument("--not-alone", action="store_true", help="leave kube-scheduler alone out: to compare settings")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _measure(options: argparse.Namespace) -> int:
    began_s = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - began_s:4.0f} s] {text}", file=sys.stderr, flush=True)

    sides = _sides(options.ours or [""], alone=not options.not_alone)
    found: list[Section] = []
    for nodes in options.nodes:
        runs = _runs(options, nodes, sides, tell)
        found.append(section(nodes, sides, runs))
        if options.output == "table":
            print(as_text(found[-1]), flush=True)
    floors = [floor for one in found for floor in one.floors]
    if options.output == "json":
        print(json.dumps(as_document(found), indent=1))
    else:
        print("== Floors ==\n" + floors_as_text(floors), end="", flush=True)
    tell("done")
    return 0 if all(floor.holds for floor in floors) else 1


def _sides(ours: Sequence[str], *, alone: bool) -> tuple[Side, ...]:
    """Return the sides: of ours each without gates and with them, the first of them being judged."""
    made = [
        Side(f"ours {flags}".strip() + (" with gates" if gated else ""), tuple(flags.split()), gated=gated)
        for flags in ours
        for gated in (False, True)
    ]
    return (*([Side(ALONE, None)] if alone else []), *made)


def _runs(options: argparse.Namespace, nodes: int, sides: Sequence[Side], tell: Progress) -> list[Run]:
    count = options.runs or RUNS.get(nodes, RUNS_ELSE)
    wanted = options.pods or PODS.get(nodes, PODS_ELSE)
    rounds = -(-wanted // most_pods(nodes))
    pods = -(-wanted // rounds)
    runs = []
    with World(
        nodes, isolation.ROOT / f"nodes-{nodes}", binaries_folder(), logs_folder(), tell, seed=options.seed
    ) as world:
        for run in range(count):
            # Who is first changes, so that neither side always meets the younger server.
            order = sides if run % 2 == 0 else tuple(reversed(sides))
            outcomes = []
            for side in order:
                for place in range(rounds):
                    outcome = world.run(side, pods, calm=place == 0)
                    rate = outcome.pods / outcome.seconds
                    tell(f"{nodes:,} nodes, run {run + 1} of {count}, {side.name}: {rate:.1f} pods/s")
                    outcomes.append(outcome)
            runs.append(Run(tuple(outcomes)))
    return runs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
