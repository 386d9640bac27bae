"""What a start leaves out while it loads its modules, and that all is as ever afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress

from dracaena.process.loading import loading


def test_the_collector_rests_while_modules_are_loaded_and_goes_on_whatever_becomes_of_that() -> None:
    with suppress(ImportError), loading():
        with loading():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def printed_by(program: str) -> str:
    """In a process of its own: in this one structlog is loaded already."""
    return subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True).stdout


def test_structlog_loads_no_rich_and_who_wants_rich_still_gets_it() -> None:
    program = """
import sys
from dracaena.process.loading import loading
with loading():
    import structlog
print(sorted({name.partition(".")[0] for name in sys.modules} & {"rich", "pygments"}))
import rich.console
print(rich.console.Console.__name__, structlog.dev.rich)
"""
    assert printed_by(program).splitlines() == ["[]", "Console None"]


def test_a_structlog_or_rich_that_is_there_already_stays_as_it_is() -> None:
    program = """
import rich, structlog
from dracaena.process.loading import loading
with loading():
    import rich as again
print(again is rich, structlog.dev.rich is rich)
"""
    assert printed_by(program) == "True True\n"
