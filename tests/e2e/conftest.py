"""Clusters that tests share, what was logged beside each failure, and an exit code that tells a skip from a pass."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import isolation
from e2e.cluster import Cluster
from e2e.kubernetes import IS_1_36
from e2e.leftovers import restore
from e2e.made_up import MadeUpCluster
from e2e.processes import Program
from e2e.run import BINARIES, CHART, CONTROL_PLANE, INSTALL_TESTS, KUEUE, LOGS, MISSING, NODE, PLACE, SKIPPED, TESTS

collect_ignore = ["test_gated_fields.py", "test_pod_groups.py", "test_skipped_calls.py"] if IS_1_36 else []
"""What a version does not have is no test of it."""

if KUEUE not in os.environ:
    collect_ignore.append("test_kueue.py")

_CLUSTER = pytest.StashKey[Cluster]()
_MADE_UP = pytest.StashKey[MadeUpCluster]()
_LOG_SIZES = pytest.StashKey[dict[str, int]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs elsewhere. Skip everything when the world of its own is not there: say why, and how to get
    it."""
    if place := os.environ.get(PLACE):
        config.hook.pytest_deselected(items=[item for item in items if _place(item) != place])
        items[:] = [item for item in items if _place(item) == place]
    if BINARIES not in os.environ:
        reason = os.environ.get(MISSING) or "runs only under `make e2e`"
        for item in (item for item in items if TESTS in item.path.parents):
            item.add_marker(pytest.mark.skip(reason=f"missing: {reason}" if MISSING in os.environ else reason))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give Kubernetes with one Ready node, without Dracaena."""
    cluster = Cluster(isolation.ROOT, Path(os.environ[BINARIES]), Path(os.environ[LOGS]))
    request.config.stash[_CLUSTER] = cluster
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Cluster:
    """Give the cluster with Dracaena running on it."""
    cluster.install()
    return cluster


@pytest.fixture(scope="session")
def _made_up(request: pytest.FixtureRequest) -> Iterator[MadeUpCluster]:
    cluster = MadeUpCluster(Path(os.environ[BINARIES]), Path(os.environ[LOGS]))
    request.config.stash[_MADE_UP] = cluster
    with cluster:
        yield cluster


@pytest.fixture
def made_up(_made_up: MadeUpCluster) -> Iterator[MadeUpCluster]:
    """Give a control plane with our controller and no nodes; whatever the test makes there is removed after it."""
    yield _made_up
    _made_up.reset()


@pytest.fixture(autouse=True)
def _restored(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave nothing of a test to the next one."""
    yield
    cluster = request.config.stash.get(_CLUSTER, None)
    if cluster is not None and cluster.is_up:
        restore(cluster)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note where the logs are, so that a failure shows only what belongs to it."""
    item.stash[_LOG_SIZES] = {program.name: program.log_size() for program in _programs(item.config)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failure what each program logged during the test."""
    report = yield
    if report.failed:
        sizes = item.stash.get(_LOG_SIZES, {})
        for program in _programs(item.config):
            state = "running" if program.is_running else "not running"
            if tail := program.tail(sizes.get(program.name, 0)):
                report.sections.append((f"{program.name}, {state}, {program.log}", tail))
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Exit 77 when nothing failed but something was skipped."""
    if _under_the_runner() and exitstatus == pytest.ExitCode.OK and _reports(session.config, "skipped"):
        session.exitstatus = SKIPPED


def pytest_unconfigure(config: pytest.Config) -> None:
    """End with the three counts and the reasons of what did not run."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.collectonly or not _under_the_runner():
        return
    skipped = Counter(str(report.longrepr[2]) for report in _reports(config, "skipped"))
    for reason, count in sorted(skipped.items()):
        reporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    passed, failed = len(_reports(config, "passed")), len(_reports(config, "failed", "error"))
    reporter.write_line(f"{passed} passed, {failed} failed, {skipped.total()} skipped")


def _place(item: pytest.Item) -> str:
    """Return where a test belongs."""
    if INSTALL_TESTS in item.path.parents:
        return CHART
    return NODE if "cluster" in getattr(item, "fixturenames", ()) else CONTROL_PLANE


def _programs(config: pytest.Config) -> tuple[Program, ...]:
    """Return all programs of the clusters that were started."""
    cluster, made_up = config.stash.get(_CLUSTER, None), config.stash.get(_MADE_UP, None)
    return (*(cluster.programs if cluster else ()), *(made_up.programs if made_up else ()))


def _under_the_runner() -> bool:
    """Whether run.py started this; anybody's `pytest tests` is not ours to count."""
    return BINARIES in os.environ or MISSING in os.environ


def _reports(config: pytest.Config, *outcomes: str) -> list[Any]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    stats = reporter.stats if reporter is not None else {}
    return [report for outcome in outcomes for report in stats.get(outcome, ())]
