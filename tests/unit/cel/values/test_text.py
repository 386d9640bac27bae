from __future__ import annotations

import pytest

from dracaena.cel.values.text import quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", '""'),
        ("aé😀", '"aé😀"'),
        ('a"\\', '"a\\"\\\\"'),
        ("\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
        ("\x00\x1f\x7f", '"\\x00\\x1f\\x7f"'),
        ("\x80\u2028\ufeff\U000e0001", '"\\u0080\\u2028\\ufeff\\U000e0001"'),
        ("\xa0", '"\\u00a0"'),
    ],
)
def test_what_cannot_be_printed_is_escaped(text: str, shown: str) -> None:
    assert quoted(text) == shown
