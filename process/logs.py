"""Log lines on standard error: JSON for machines, columns for people. The only place that configures logging."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

import structlog

from dracaena.api.errors import BadInputError

LEVELS = ("debug", "info", "warning", "error")
FORMS = ("json", "text")


def configure_logs(level: str, form: str, stream: TextIO | None = None) -> None:
    """Send our own lines and those of the libraries to `stream` (standard error), in one form, from `level` up.

    Raises BadInputError for an unknown level or form.
    """
    if level not in LEVELS:
        raise BadInputError(f"log level {level!r} is unknown, expected one of {', '.join(LEVELS)}")
    if form not in FORMS:
        raise BadInputError(f"log form {form!r} is unknown, expected one of {', '.join(FORMS)}")
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(sort_keys=True)
        if form == "json"
        else structlog.dev.ConsoleRenderer(
            colors=_wants_colors(stream or sys.stderr),
            exception_formatter=structlog.dev.plain_traceback,  # its default shows local variables where rich is there
        )
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    final: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        final.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*final, renderer]))
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries speak from WARNING up, whatever our own level: urllib3 logs every request at debug.
    root.setLevel(number)
    for noisy in ("urllib3", "kubernetes", "grpc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _wants_colors(stream: TextIO) -> bool:
    """Tell whether a terminal reads the lines, and nobody asked for none (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")
