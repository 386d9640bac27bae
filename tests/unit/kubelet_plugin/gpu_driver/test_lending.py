"""The driver is closed on a node while a GPU leaves it, with real locks: in the plugin, the exporter and nvidia-smi."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.gpu_driver.use import GpuDriverUse, lent
from dracaena.host.facts.troubles import GpuDriverReleasedError, GpuDriverTroubleError
from dracaena.host.gpu_driver.permission import GpuDriverPermission
from dracaena.host.gpu_driver.thread import WedgedError
from dracaena.kubelet_plugin.gpu_driver.lending import GpuDriverLending
from dracaena.kubelet_plugin.gpu_driver.release import GpuDriverRelease
from dracaena.kubelet_plugin.ports import EffectPendingError
from dracaena.process.clock import SystemClock
from support.mig_node import ask_at_once


@pytest.fixture
def use(tmp_path: Path) -> Callable[[], GpuDriverUse]:
    return partial(GpuDriverUse, tmp_path / "driver-in-use.lock", tmp_path / "release-driver")


def lending(folder: Path, close: Callable[[], None], within_s: float = 0.0) -> GpuDriverLending:
    return GpuDriverLending(ask_at_once, close, lambda: lent(folder / "driver-in-use.lock", SystemClock(), within_s))


def test_while_it_is_lent_nobody_opens_the_driver_and_nothing_counts_as_gone_with_it(
    tmp_path: Path, use: Callable[[], GpuDriverUse]
) -> None:
    own, exporter = use(), GpuDriverPermission(use())
    plugin = GpuDriverRelease("gpu.dracaena.dev", use)
    assert own.enter()

    def work() -> None:
        assert own.is_lent()
        assert "closed for a while" in (exporter.refusal() or "")
        with pytest.raises(GpuDriverReleasedError):
            exporter.enter()
        with pytest.raises(GpuDriverTroubleError, match="closed for a while") as caught:
            plugin.enter()
        assert not isinstance(caught.value, GpuDriverReleasedError), "a MIG device would be left behind"
        assert plugin.refusal() is None, "no device gets a taint"

    lending(tmp_path, own.leave)("unbinding", work)
    assert not own.is_lent()
    assert exporter.refusal() is None
    plugin.enter()
    plugin.leave()


def test_a_loan_that_ends_while_we_ask_why_the_driver_is_closed_is_not_taken_for_a_release(
    tmp_path: Path, use: Callable[[], GpuDriverUse]
) -> None:
    """Else nvidia-smi gets GpuGoneError, and a time slice that is to end stays with its note dropped."""
    loan = ExitStack()

    class Late(GpuDriverUse):
        def asked(self) -> str | None:
            loan.close()
            return super().asked()

    paths = tmp_path / "driver-in-use.lock", tmp_path / "release-driver"
    plugin = GpuDriverRelease("gpu.dracaena.dev", partial(Late, *paths))
    loan.enter_context(lent(paths[0], SystemClock(), 0))
    with pytest.raises(GpuDriverTroubleError, match="closed for a while"), plugin.in_program():
        raise AssertionError("it was lent")
    assert not use().is_lent()
    with plugin.in_program():
        assert use().enter()


def test_others_are_waited_for_and_named_by_who_looks_if_they_do_not_let_go(
    tmp_path: Path, use: Callable[[], GpuDriverUse]
) -> None:
    exporter, began = use(), threading.Event()
    assert exporter.enter()

    def let_go() -> None:
        while not exporter.is_lent():
            began.wait(0.01)
        exporter.leave()

    thread = threading.Thread(target=let_go)
    thread.start()
    done: list[bool] = []
    lending(tmp_path, lambda: None, 30.0)("unbinding", lambda: done.append(use().enter()))
    thread.join()
    assert done == [False], "it was waited for, so all are locked out"
    assert exporter.enter()
    lending(tmp_path, lambda: None)("unbinding", lambda: done.append(True))
    assert done == [False, True]


def test_a_driver_that_is_lent_to_another_is_not_had_a_second_time(tmp_path: Path) -> None:
    made = lending(tmp_path, lambda: None)
    with pytest.raises(TemporaryError, match="lent to another process"):
        made("unbinding", lambda: made("unbinding", lambda: None))


def test_a_driver_that_does_not_answer_leaves_what_was_begun(tmp_path: Path) -> None:
    def ask(_what: str, _work: Callable[[], object], _deadline_s: float) -> object:
        raise WedgedError("the NVIDIA driver does not answer")

    made = GpuDriverLending(ask, lambda: None, lambda: lent(tmp_path / "lock", SystemClock(), 0))
    with pytest.raises(EffectPendingError, match="unbinding: the NVIDIA driver does not answer"):
        made("unbinding", lambda: None)
    made.open_anew()  # who has given a GPU back does not fail for that


def test_a_lock_file_that_cannot_be_opened_keeps_the_other_one_open_no_longer(tmp_path: Path) -> None:
    (tmp_path / "driver-in-use.lock").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(TemporaryError, match=r"cannot open lock file .*: Is a directory"):
            lending(tmp_path, lambda: None)("unbinding", lambda: None)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_when_gpus_have_moved_nvml_is_closed_in_the_exporter_too(
    tmp_path: Path, use: Callable[[], GpuDriverUse]
) -> None:
    """It shows the GPUs that were there when it was opened."""
    closed: list[str] = []
    exporter, pause = use(), threading.Event()
    assert exporter.enter()

    def let_go() -> None:
        while not exporter.is_lent():
            pause.wait(0.01)
        closed.append("exporter")
        exporter.leave()

    thread = threading.Thread(target=let_go)
    thread.start()
    lending(tmp_path, lambda: closed.append("plugin"), 30.0).open_anew()
    thread.join()
    assert closed == ["plugin", "exporter"]
    assert exporter.enter()


def test_it_stays_closed_for_as_long_as_a_block_takes(tmp_path: Path, use: Callable[[], GpuDriverUse]) -> None:
    own, plugin = use(), GpuDriverRelease("gpu.dracaena.dev", use)
    assert own.enter()
    with lending(tmp_path, own.leave).closed("switching modes"):
        assert own.is_lent()
        with pytest.raises(GpuDriverTroubleError, match="closed for a while"):
            plugin.enter()
    assert not own.is_lent()
    plugin.enter()
    with pytest.raises(ValueError, match="mine"), lending(tmp_path, plugin.leave).closed("switching modes"):
        raise ValueError("mine")
    assert own.enter(), "an error of the block ends it, too"


def test_a_driver_that_answers_too_late_is_not_lent_for_ever(tmp_path: Path, use: Callable[[], GpuDriverUse]) -> None:
    late: list[Callable[[], object]] = []

    def ask(_what: str, work: Callable[[], object], _deadline_s: float) -> object:
        late.append(work)
        raise WedgedError("the NVIDIA driver does not answer")

    made = GpuDriverLending(ask, lambda: None, lambda: lent(tmp_path / "driver-in-use.lock", SystemClock(), 0))
    with pytest.raises(WedgedError), made.closed("switching modes"):
        raise AssertionError
    late[0]()  # the driver's thread goes on, and nobody waits for that any more
    assert not use().is_lent()
    assert use().enter()
