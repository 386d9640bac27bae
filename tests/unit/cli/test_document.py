from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dracaena.cli.document import MOST_ALIASED_VALUES, MOST_DEPTH, DocumentError, read_documents


def values(text: str | bytes) -> list[Any]:
    content = text.encode() if isinstance(text, str) else text
    return [document.value for document in read_documents(content)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: on", "on"),
        ("a: yes", "yes"),
        ("a: No", "No"),
        ("a: true", True),
        ("a: FALSE", False),
        ("a: ~", None),
        ("a:", None),
        ("a: Null", None),
        ("a: 0", 0),
        ("a: -12", -12),
        ("a: +3", 3),
        ("a: 0x1F", 31),
        ("a: 0o17", 15),
        ("a: 1.5", 1.5),
        ("a: .5", 0.5),
        ("a: 1e3", 1000.0),
        ("a: 1.2.3", "1.2.3"),
        ("a: 2026-01-31", "2026-01-31"),
        ("a: 12:30", "12:30"),
        ("a: 80Gi", "80Gi"),
        ("a: '010'", "010"),
        ('a: "yes"', "yes"),
        ("a: !!str 5", "5"),
        ("a: !!int 5", 5),
        ("a: |\n  x\n  y\n", "x\ny\n"),
        ("a: >-\n  x\n  y\n", "x y"),
        ("a: [1, {b: c}]", [1, {"b": "c"}]),
    ],
)
def test_scalars_mean_what_they_say(text: str, value: Any) -> None:
    assert values(text) == [{"a": value}]


def test_keys_are_texts() -> None:
    assert values("1: a\ntrue: b\non: c") == [{"1": "a", "true": "b", "on": "c"}]


def test_a_document_without_content_keeps_its_number() -> None:
    assert values("---\na: 1\n---\n---\n# nothing\n---\nb: 2\n...\n") == [{"a": 1}, None, None, {"b": 2}]


def test_anchors_and_merge_keys_are_read() -> None:
    text = "base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: {<<: [{x: 9}, *b]}\nthree: *b\n"
    assert values(text) == [
        {"base": {"x": 1, "y": 2}, "one": {"x": 1, "y": 3}, "two": {"x": 9, "y": 2}, "three": {"x": 1, "y": 2}}
    ]


def test_json_is_read_with_tabs_escapes_and_values_in_a_row() -> None:
    text = '{\n\t"a":\t"\\ud83d\\ude00 \\/ \\\\ud83d"}\n{"b":1} {"c":[]}\n'
    assert values(text) == [{"a": "😀 / \\ud83d"}, {"b": 1}, {"c": []}]


def test_other_encodings_with_a_mark_are_read() -> None:
    assert values("a: é".encode("utf-8-sig")) == [{"a": "é"}]
    assert values("a: é".encode("utf-16")) == [{"a": "é"}]


def test_places_are_those_of_keys_and_items() -> None:
    (document,) = read_documents(b"kind: X\nspec:\n  items:\n    - name: a\n    - {name: b}\n")
    assert (document.place.line, document.place.column) == (1, 1)
    for path, line, column in [
        (("spec",), 2, 1),
        (("spec", "items"), 3, 3),
        (("spec", "items", 1), 5, 7),
        (("spec", "items", 1, "name"), 5, 8),
        (("spec", "items", 1, "missing", "below"), 5, 7),
        (("nothing",), 1, 1),
    ]:
        place = document.place.at(path)
        assert (place.line, place.column) == (line, column)


def test_places_in_json_values_in_a_row_count_from_the_top() -> None:
    one, two, three = read_documents(b'{"a": 1}\n{"b": 1} {"c":\n 2}')
    assert [(each.place.line, each.place.column) for each in (one, two, three)] == [(1, 1), (2, 1), (2, 10)]
    assert three.place.at(("c",)).column == 11


BROKEN = [
    ("a: 1\nb:\n  c: 1\n  c: 2", 4, 3, "key 'c' appears twice (first on line 3), expected once"),
    ('{"a": 1,\n "a": 2}', 2, 2, "key 'a' appears twice (first on line 1), expected once"),
    ("a: 010", 1, 4, "010 is one number in YAML 1.1 and another value in 1.2"),
    ("a: 1_000", 1, 4, "1_000 is one number in YAML 1.1"),
    ("a: 0b11", 1, 4, "0b11 is one number in YAML 1.1"),
    ("a: .inf", 1, 4, ".inf is beyond what JSON allows"),
    ("a: .NaN", 1, 4, ".NaN is beyond what JSON allows"),
    ("a: 1e999", 1, 4, "1e999 is beyond what JSON allows"),
    ("a: " + "9" * 401, 1, 4, "is beyond what JSON allows"),
    ("a: !!binary AAAA", 1, 4, "tag tag:yaml.org,2002:binary, expected none"),
    ("a: !mine {}", 1, 4, "tag !mine, expected none"),
    ("a: !!int x", 1, 4, "tag tag:yaml.org,2002:int on 'x', expected a value of that type"),
    ("? [a]\n: b", 1, 3, "a key that is not text"),
    ("a: *b", 1, 4, "alias *b, expected an anchor &b that ends before it"),
    ("&a [*a]", 1, 5, "alias *a, expected an anchor &a that ends before it"),
    ("a: &x 1\n---\nb: *x", 3, 4, "alias *x, expected an anchor"),
    ("a: {<<: 5}", 1, 5, "merge key <<, expected a mapping"),
    ("a: b: c", 1, 5, "not YAML: mapping values are not allowed in this context"),
    ("a: [1, 2", 2, 1, "not YAML: did not find expected ',' or ']'"),
    ("a:\n\t- b", 2, 1, "not YAML: found character that cannot start any token"),
    ('{"a": }x', 1, 8, "not YAML"),
    ("a: \x00", 1, 4, "control character 0x00, expected text"),
    ("a: 1\nb: \x1b", 2, 4, "control character 0x1b, expected text"),
    ("[" * (MOST_DEPTH + 1), 1, MOST_DEPTH + 1, f"more than {MOST_DEPTH} levels"),
    ("{a: " * 5000, 1, 4 * MOST_DEPTH + 1, f"more than {MOST_DEPTH} levels"),
    ('{"a": ' * 5000, 1, 6 * MOST_DEPTH + 1, f"more than {MOST_DEPTH} levels"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), BROKEN, ids=[case[0][:20] for case in BROKEN])
def test_what_cannot_be_read_is_named_with_its_place(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        values(text)
    assert message in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)


def test_bytes_that_are_no_text_are_named_with_their_place() -> None:
    with pytest.raises(DocumentError) as caught:
        values(b"a: 1\nb: \xc3\xa9\xff")
    assert (caught.value.line, caught.value.column) == (2, 5)
    assert caught.value.message == "byte 0xff, expected text in UTF-8"


def test_a_bomb_of_aliases_is_refused_before_it_goes_off() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 60)]
    with pytest.raises(DocumentError, match=f"more than {MOST_ALIASED_VALUES} values"):
        values("\n".join(lines))


# Controls are refused, and YAML folds its own line breaks inside quotes.
TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029", exclude_categories=["Cc", "Cs", "Cn", "Co"])
)
# PyYAML writes by YAML 1.1, where 0E0, 1.5e5 and 0o7 are texts without quotes; to Kubernetes' reader they are numbers.
QUOTED_TEXT = TEXT.filter(lambda text: re.fullmatch(r"[-+.\deExXo_]+", text) is None)


def json_values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc:-# é", max_size=5), inner, max_size=4),
        max_leaves=10,
    )


@settings(derandomize=True)
@given(value=st.dictionaries(st.text("abc", max_size=3), json_values(TEXT)))
def test_every_json_text_reads_as_json(value: Any) -> None:
    for indent in (None, 1, "\t"):
        for is_ascii in (True, False):
            assert values(json.dumps(value, indent=indent, ensure_ascii=is_ascii)) == [value]


@settings(derandomize=True)
@given(value=json_values(QUOTED_TEXT))
@example(value="1")
def test_what_a_yaml_writer_writes_reads_back(value: Any) -> None:
    assert values(yaml.safe_dump(value, allow_unicode=True)) == [value]


@settings(derandomize=True)
@given(content=st.binary(max_size=60) | st.text("{}[]:-,&*!?|>'\"#%@ \n\tab01<~.", max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(DocumentError):
        read_documents(content)
