"""The driver is never open for anybody who was asked to let go of it, whoever comes first."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.host.adapters.gpu_driver.use import GpuDriverUse, request_release, wait_until_let_go, withdraw
from dracaena.process.clock import SystemClock
from support.clock import FakeClock

LOCK, REQUEST = "driver-in-use.lock", "release-driver"


def use(folder: Path) -> GpuDriverUse:
    return GpuDriverUse(folder / LOCK, folder / REQUEST)


def let_go(folder: Path) -> bool:
    return wait_until_let_go(folder / LOCK, FakeClock(), 0)


def test_two_instances_have_the_driver_open_at_once_and_both_must_let_go(tmp_path: Path) -> None:
    one, other = use(tmp_path), use(tmp_path)
    assert one.enter()
    assert one.enter()
    assert other.enter()
    one.leave()
    assert not let_go(tmp_path)
    other.leave()
    other.leave()
    assert let_go(tmp_path)


def test_a_process_that_dies_holds_the_driver_no_more(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from dracaena.host.adapters.gpu_driver.use import GpuDriverUse\n"
        f"print(GpuDriverUse(Path({str(tmp_path / LOCK)!r}), Path('none')).enter(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not let_go(tmp_path)
        holder.kill()
        holder.wait()
        assert let_go(tmp_path)


def test_who_waits_is_told_as_soon_as_the_driver_is_let_go_of(tmp_path: Path) -> None:
    holder = use(tmp_path)
    assert holder.enter()
    told: list[bool] = []
    waiter = threading.Thread(target=lambda: told.append(wait_until_let_go(tmp_path / LOCK, SystemClock(), 30)))
    waiter.start()
    holder.leave()
    waiter.join(20)
    assert told == [True]


def test_a_request_stands_until_it_is_withdrawn(tmp_path: Path) -> None:
    assert use(tmp_path).asked() is None
    request_release(tmp_path / REQUEST, "reset of\n GPU 3")
    request_release(tmp_path / REQUEST, "reset of\n GPU 3")
    assert use(tmp_path).asked() == "reset of GPU 3"
    assert withdraw(tmp_path / REQUEST)
    assert not withdraw(tmp_path / REQUEST)
    assert use(tmp_path).asked() is None


@pytest.mark.parametrize(
    ("content", "text"), [(b"", "without a reason"), (b"\xff" * 9000, "\N{REPLACEMENT CHARACTER}")]
)
def test_any_content_is_a_request(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / REQUEST).write_bytes(content)
    asked = use(tmp_path).asked()
    assert asked is not None
    assert asked.startswith(text)
    assert len(asked) <= 500


def test_a_request_that_cannot_be_read_counts(tmp_path: Path) -> None:
    (tmp_path / REQUEST).mkdir()
    assert "cannot be read" in (use(tmp_path).asked() or "")


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine", encoding="ascii")
    (tmp_path / f".{REQUEST}.new").symlink_to(target)
    (tmp_path / LOCK).symlink_to(target)
    request_release(tmp_path / REQUEST, "yes")
    assert target.read_text(encoding="ascii") == "mine"
    with pytest.raises(TemporaryError, match=LOCK):
        use(tmp_path).enter()
    with pytest.raises(PermanentError, match=LOCK):
        let_go(tmp_path)


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(TemporaryError, match="gone"):
        use(gone).enter()
    with pytest.raises(PermanentError, match="gone"):
        request_release(gone / REQUEST, "no")
