"""Random patterns and texts with the answers of Go's regexp: what is refused and in which words, and all matches."""

from __future__ import annotations

from collections import Counter

from conformance.regex import VECTORS, ours, read


def test_every_answer_is_that_of_go() -> None:
    wrong = [
        f"{question}: {ours(question)}, wanted {answer}" for question, answer in read() if ours(question) != answer
    ]
    assert not wrong, "\n".join(wrong)


def test_the_vectors_hold_every_kind_of_answer() -> None:
    assert VECTORS.is_file()
    kinds = Counter(answer.error.split(": ")[1] if answer.error else str(answer.matches) for _, answer in read())
    assert kinds["True"] > 200
    assert kinds["False"] > 200
    assert len(kinds) == 2 + 11  # kinds of errors that a pattern of this size can have
