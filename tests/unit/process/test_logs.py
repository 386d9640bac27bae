"""Logs are configured for a whole process, so each test is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog

PROGRAM = """
import logging, sys
import structlog
from dracaena.process.logs import configure_logs
configure_logs(sys.argv[1], sys.argv[2])
log = structlog.get_logger()
log.debug("small step", step=1)
log.info("claim prepared", claim="ns/c", devices=2)
logging.getLogger("urllib3.connectionpool").info("a request")
logging.getLogger("urllib3.connectionpool").warning("a retry")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it broke")
"""


def run(level: str, form: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, level, form], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_lines_carry_the_facts() -> None:
    lines = [json.loads(line) for line in run("info", "json")]
    assert [line["event"] for line in lines] == ["claim prepared", "a retry", "it broke"]
    assert lines[0]["claim"] == "ns/c"
    assert lines[0]["devices"] == 2
    assert lines[0]["level"] == "info"
    assert lines[0]["timestamp"].endswith("Z")
    assert "ZeroDivisionError" in lines[2]["exception"]


def test_debug_shows_our_own_lines_but_no_library_chatter() -> None:
    events = [json.loads(line)["event"] for line in run("debug", "json")]
    assert "small step" in events
    assert "a request" not in events


def test_text_is_for_people() -> None:
    text = "\n".join(run("info", "text"))
    assert "claim prepared" in text
    assert "claim=ns/c" in text


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_traceback_shows_no_local_variables_whatever_is_installed(form: str) -> None:
    """They may hold a token; the console renderer of structlog shows them where rich is there."""
    pytest.importorskip("rich")
    program = PROGRAM.replace("try:", "token = 'SECRET'[::-1]\ntry:")
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, "info", form], capture_output=True, text=True, check=True
    )
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "TERCES" not in done.stderr


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_a_terminal_gets_colors_unless_somebody_wants_none(*, no_color: str, colored: bool) -> None:
    controlling, terminal = os.openpty()
    with os.fdopen(terminal, "wb") as screen, os.fdopen(controlling, "rb", buffering=0) as seen:
        subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, "info", "text"],
            stderr=screen,
            check=True,
            env=os.environ | {"NO_COLOR": no_color},
        )
        text = seen.read(1 << 16)
    assert b"claim prepared" in text
    assert (b"\x1b[" in text) == colored


@pytest.mark.parametrize(("level", "form"), [("loud", "json"), ("info", "xml")])
def test_unknown_level_or_form_is_refused(level: str, form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, level, form], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "is unknown, expected one of" in done.stderr


@pytest.fixture(scope="module")
def in_thread_of_before() -> Iterator[Callable[[Callable[[], object]], object]]:
    """Run something in a thread that is there before a test begins, as one that an earlier test left."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(threading.current_thread).result() is not threading.current_thread()
        yield lambda work: pool.submit(work).result()


def test_a_line_of_a_thread_that_an_earlier_test_left_is_not_in_the_output_of_this_one(
    in_thread_of_before: Callable[[Callable[[], object]], object], capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/unit/conftest.py sees to it: tests of commands read their own output."""
    in_thread_of_before(lambda: structlog.get_logger().info("of before"))
    structlog.get_logger().info("of this test")
    out = capsys.readouterr().out
    assert ("of before" in out, "of this test" in out) == (False, True)


def test_a_line_of_a_thread_that_an_earlier_test_left_is_not_captured_either(
    in_thread_of_before: Callable[[Callable[[], object]], object],
) -> None:
    with structlog.testing.capture_logs() as lines:
        in_thread_of_before(lambda: structlog.get_logger().info("of before"))
        structlog.get_logger().info("of this test")
    assert [line["event"] for line in lines] == ["of this test"]
