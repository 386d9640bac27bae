"""Opaque parameters of any depth that kube-apiserver takes: kept and answered as the bytes that came."""

from __future__ import annotations

import json

import pytest

from dracaena.demo.apiserver.deep import held_text, hold_texts, release_texts


def body(levels: int) -> bytes:
    """A body whose deepest value is so many levels below its own object."""
    return b'{"spec":{"parameters":{"a":%s}},"other":1}' % (b"[" * levels + b'"\\"}"' + b"]" * levels)


@pytest.mark.parametrize("levels", [1, 150, 300, 9_000])
def test_bytes_come_back_as_they_were(levels: int) -> None:
    held = hold_texts(body(levels))
    value = json.loads(held)["spec"]["parameters"]
    assert (held_text(value) is None) == (levels < 200)
    assert release_texts(held) == body(levels)


def test_what_goes_reads_no_more_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeded max depth"):
        hold_texts(body(10_001))
