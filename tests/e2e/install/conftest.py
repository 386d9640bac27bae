"""One cluster for all tests of the chart, and what was logged beside each failure."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from e2e import isolation
from e2e.install.chart_cluster import ChartCluster
from e2e.run import BINARIES, IMAGE_ARCHIVE, LOGS

_CLUSTER = pytest.StashKey[ChartCluster]()
_LOG_SIZES = pytest.StashKey[dict[str, int]]()


@pytest.fixture(scope="session")
def bare(request: pytest.FixtureRequest) -> Iterator[ChartCluster]:
    """Give a cluster on which nothing of ours is installed."""
    archive = Path(os.environ[IMAGE_ARCHIVE])
    cluster = ChartCluster(isolation.ROOT, Path(os.environ[BINARIES]), Path(os.environ[LOGS]), archive)
    request.config.stash[_CLUSTER] = cluster
    with cluster:
        yield cluster


@pytest.fixture
def chart(bare: ChartCluster) -> Iterator[ChartCluster]:
    """Give the cluster with the chart installed; only the first test waits for it. A good test leaves no pod."""
    bare.ensure_installed()
    yield bare
    bare.remove_pods()


LAST = "test_used_rights"
"""Module that looks at what all the others have done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put that module last."""
    items.sort(key=lambda item: item.path.stem == LAST)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note where the logs are, so that a failure shows only what belongs to it."""
    cluster = item.config.stash.get(_CLUSTER, None)
    item.stash[_LOG_SIZES] = {p.name: p.log_size() for p in cluster.programs} if cluster else {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failure what each program logged during the test, and what our pods say."""
    report = yield
    cluster = item.config.stash.get(_CLUSTER, None)
    if report.failed and cluster is not None:
        for part in ("controller", "kubelet-plugin"):
            report.sections.append((f"pods of the {part}", "\n".join(cluster.logs(part).splitlines()[-30:])))
        state = cluster.kubectl("get", "pods,events", "--all-namespaces", check=False)
        report.sections.append(("kubectl get pods,events", state))
        sizes = item.stash.get(_LOG_SIZES, {})
        for program in cluster.programs:
            if tail := program.tail(sizes.get(program.name, 0)):
                report.sections.append((f"{program.name}, {program.log}", tail))
    return report
