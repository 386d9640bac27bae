"""Ask the reference for the answers of a file of vectors and write them down. For developers; needs Go.

    cd tests/conformance/reference && go build -o /tmp/reference .
    PYTHONPATH=tests .venv/bin/python -P -m conformance.record_vectors /tmp/reference FILE…

Vectors whose answer is not the same every time (Go walks maps in a random order) are left out, and so are doubles.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.vectors import COMPILE_ERROR, ERROR, MATCH, NO_MATCH, Vector, VectorFile, ours, read, write

# Times each expression is asked. Five answers in one order of a map of two happen once in sixteen.
ASKED = 6


class Reference:
    """The reference as a program: one JSON request a line, one JSON answer a line."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, expression: str, device: dict[str, Any]) -> Vector:
        """The reference's answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"expression": expression, "device": device}) + "\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        if found["compile"]:
            return Vector(expression, COMPILE_ERROR, found["compile"], 0)
        if found["error"]:
            return Vector(expression, ERROR, found["error"], found["cost"])
        return Vector(expression, MATCH if found["match"] else NO_MATCH, "", found["cost"])


def record(reference: Reference, file: VectorFile) -> VectorFile:
    """The file with the reference's answers."""
    vectors = []
    for expression in dict.fromkeys(vector.expression for vector in file.vectors):
        answers = {reference.ask(expression, file.document) for _ in range(ASKED)}
        if len(answers) != 1:
            print(f"left out, not the same every time: {expression}")
            continue
        answer = answers.pop()
        message = ours(expression, file.device).message
        if not message or message not in answer.message:
            message = ""
        vectors.append(Vector(expression, answer.answer, message, answer.cost))
    return VectorFile(file.document, tuple(vectors))


def main(arguments: Sequence[str]) -> int:
    """Record every file that is named."""
    reference = Reference(Path(arguments[0]))
    for name in arguments[1:]:
        path = Path(name)
        write(path, record(reference, read(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
