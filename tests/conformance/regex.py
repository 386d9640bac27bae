"""Patterns and texts with the answers of Go's regexp, which Kubernetes uses.

They are ours, made at random (`random_patterns`); regex_reference, a page of Go, answers them. To search for
differences in so many random ones, and to record a sample of them:

    cd tests/conformance/regex_reference && go build -o /tmp/regex-reference .
    PYTHONPATH=tests .venv/bin/python -P -m conformance.regex /tmp/regex-reference 100000 [--record]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from conformance.random_patterns import Generator
from dracaena.cel.errors import CostLimitError, EvaluationError
from dracaena.cel.values.regex import matching

VECTORS = Path(__file__).parent / "regex_vectors.jsonl"

_SAMPLE: Final = 1_000  # vectors recorded: 230 KB, and a second to replay
_ASKED_AT_ONCE: Final = 1_000
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class Question:
    """A pattern and what it is searched in."""

    pattern: str
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Why the pattern is refused (as Go says it), or whether it matches and all that it finds."""

    error: str
    matches: bool
    all: tuple[str, ...]


def ours(question: Question) -> Answer | None:
    """What our implementation answers; None where the pattern takes more memory than we give."""
    try:
        found = matching.find_all(question.text, question.pattern)
        first = matching.find(question.text, question.pattern)
        matches = matching.search(question.text, question.pattern)
    except EvaluationError as error:
        return Answer(error.message, matches=False, all=())
    except CostLimitError:
        return None
    assert first == (found[0] if found else ""), question
    return Answer("", matches, found)


def questions(first_seed: int, count: int) -> list[Question]:
    """So many random questions."""
    made = []
    for seed in range(first_seed, first_seed + count):
        generator = Generator(seed)
        made.append(Question(generator.pattern(), generator.text()))
    return made


def asked(program: Path, these: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
    """The questions with Go's answers."""
    lines = "".join(json.dumps(asdict(question)) + "\n" for question in these)
    done = subprocess.run([program], input=lines, stdout=subprocess.PIPE, text=True, check=True)
    for question, line in zip(these, done.stdout.split("\n"), strict=False):
        yield question, _answer(json.loads(line))


def read(path: Path = VECTORS) -> list[tuple[Question, Answer]]:
    """All recorded questions with their answers."""
    documents = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [(Question(each["pattern"], each["text"]), _answer(each)) for each in documents]


def write(answers: Sequence[tuple[Question, Answer]], path: Path = VECTORS) -> None:
    """Record questions with their answers, one on a line."""
    lines = (json.dumps({**asdict(question), **asdict(answer)}, sort_keys=True) + "\n" for question, answer in answers)
    path.write_text("".join(lines), encoding="utf-8")


def _answer(document: dict[str, object]) -> Answer:
    error, matches, found = document["error"], document["matches"], document["all"]
    assert isinstance(error, str)
    assert isinstance(found, list)
    return Answer(error, bool(matches), tuple(found))


def main(arguments: Sequence[str]) -> int:
    """Ask Go and us the same; print what differs. 0 when nothing does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args(arguments)
    kinds: Counter[str] = Counter()
    recorded: list[tuple[Question, Answer]] = []
    differences = too_large = 0
    for begin in range(options.first_seed, options.first_seed + options.count, _ASKED_AT_ONCE):
        for question, wanted in asked(options.program, questions(begin, _ASKED_AT_ONCE)):
            kinds[wanted.error.split(": ")[1] if wanted.error else f"matches: {wanted.matches}"] += 1
            found = ours(question)
            if found is None:
                too_large += 1
                continue
            if len(recorded) < _SAMPLE:
                recorded.append((question, wanted))
            if found != wanted:
                differences += 1
                if differences <= _SHOWN:
                    print(f"{question!r}\n    Go    {wanted!r}\n    ours  {found!r}")
    for kind, number in kinds.most_common():
        print(f"{number:7} {kind}")
    print(f"{sum(kinds.values())} questions, {too_large} too large for us, {differences} answered otherwise than by Go")
    if options.record:
        write(recorded)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
