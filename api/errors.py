"""The errors that cross a package border. Everything else is an answer, not an exception."""

from __future__ import annotations


class DracaenaError(Exception):
    """Base of all errors that a user or operator may read: str() is one clear line."""


class TemporaryError(DracaenaError):
    """It may work later by itself: the caller retries with back-off."""


class PermanentError(DracaenaError):
    """A person must change something first: the text says who, what, and what was expected."""


class BadInputError(PermanentError):
    """A document given by a user (file, matrix, setting) cannot be read. Commands exit with 2."""
