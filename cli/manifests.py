"""Reads Kubernetes objects from files, folders and standard input: YAML or JSON, strictly, each with its place.

What `kubectl apply` would take is taken, but nothing is guessed: a key that stands twice, a number that two versions
of YAML read differently and a text that is no manifest are errors with their place. One text is read by
`dracaena.cli.document`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dracaena.api.errors import BadInputError
from dracaena.cli.document import Document, DocumentError, Place, read_documents
from dracaena.validation import is_understood, reference_to

STDIN = "-"
SUFFIXES = (".json", ".yaml", ".yml")
"""What is read in a folder: the rule of `kubectl apply -f FOLDER`."""
MOST_BYTES = 64 << 20
"""Largest file that is read: about the ResourceSlices of 2,000 nodes with 8 GPUs each, printed by `kubectl get`."""


class ManifestError(BadInputError):
    """Input cannot be read as Kubernetes objects. `line` and `column` count from 1; None if it is the whole file."""

    def __init__(self, file: str, line: int | None, column: int | None, message: str) -> None:
        where = file if line is None else f"{file}:{line}:{column}"
        super().__init__(f"{where}: {message}")
        self.file = file
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Source:
    """Where an object is."""

    file: str
    """As it was given, or found below the folder that was given; `standard input` for `-`."""
    document: int
    """Number of its YAML document in the file, from 1. The items of a List share one."""
    place: Place
    """Where the object begins, and where each of its fields is."""

    @property
    def line(self) -> int:
        """The line on which the object begins, from 1."""
        return self.place.line

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object as it was written, with `apiVersion` and `kind`. Values are those of JSON; never change them."""

    object: Mapping[str, Any]
    source: Source


@dataclass(frozen=True, slots=True)
class Manifests:
    """All objects, in the order of the paths, within a folder by path, within a file as written."""

    objects: tuple[Manifest, ...]
    left_out: tuple[str, ...]
    """What was found in folders but is not a manifest, one line each with the reason."""


def not_understood(manifests: Iterable[Manifest]) -> tuple[str, ...]:
    """Name the objects that may make pods in a way that is not known here, one line each."""
    return tuple(
        f"not understood: {reference_to(one.object)} ({one.source}): no pod template in it, so what pods it makes is"
        " not known"
        for one in manifests
        if not is_understood(one.object)
    )


def load_manifests(paths: Sequence[str]) -> Manifests:
    """Read files, folders with everything below them, and `-` for standard input. A path given twice is read once.

    Raises ManifestError for the first thing that cannot be read, and for input that holds no object at all.
    In a folder, what cannot be meant as a manifest is left out and reported: a Helm chart, a file without any object.
    """
    objects: list[Manifest] = []
    left_out: list[str] = []
    for path in dict.fromkeys(paths):
        if not path:  # "$VARIABLE" that is not set; Path takes it for the current folder
            raise ManifestError("''", None, None, "is not a path, expected a file or folder")
        if path != STDIN and _is_folder(path):
            found = _read_folder(Path(path))
            objects += found.objects
            left_out += found.left_out
        else:
            objects += _read_file(path)
    return Manifests(tuple(objects), tuple(left_out))


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):  # a name that is too long, for example: reading it as a file says so
        return False


def _read_folder(folder: Path) -> Manifests:
    objects: list[Manifest] = []
    left_out: list[str] = []
    for path in _walk(folder):
        if path.is_dir():
            left_out.append(f"{path}: a Helm chart; read what it renders instead: helm template {path} | dracaena … -")
            continue
        documents = _documents(str(path))
        if any(_is_object(document.value) for document in documents):
            objects += _objects(str(path), documents)
        else:
            left_out.append(f"{path}: contains no Kubernetes object")
    if not objects:
        kinds = ", ".join(SUFFIXES)
        raise ManifestError(str(folder), None, None, f"no Kubernetes objects in this folder, expected files ({kinds})")
    return Manifests(tuple(objects), tuple(left_out))


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files that count, and the folders of charts instead of their content, by path; nothing hidden."""

    def fail(error: OSError) -> None:
        raise ManifestError(str(error.filename or folder), None, None, f"cannot be read: {error.strerror}") from error

    found: list[Path] = []
    for where, folders, files in os.walk(folder, onerror=fail):
        if "Chart.yaml" in files:
            folders.clear()
            found.append(Path(where))
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(where, name) for name in files if name.endswith(SUFFIXES) and not name.startswith(".")]
    yield from sorted(found)


def _read_file(path: str) -> list[Manifest]:
    name = _display(path)
    objects = _objects(name, _documents(path))
    if not objects:
        raise ManifestError(name, None, None, "is empty, expected Kubernetes objects in YAML or JSON")
    return objects


def _documents(path: str) -> list[Document]:
    name = _display(path)
    try:
        return read_documents(_read(path))
    except DocumentError as error:
        raise ManifestError(name, error.line, error.column, error.message) from error


def _read(path: str) -> bytes:
    name = _display(path)
    try:
        if path != STDIN:
            with Path(path).open("rb") as source:
                content = source.read(MOST_BYTES + 1)
        elif sys.stdin is None:  # a shell closed it: <&-
            raise ManifestError(name, None, None, "is closed, expected Kubernetes objects in YAML or JSON")
        else:
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ManifestError(name, None, None, f"cannot be read: {reason}, expected a file or folder") from error
    if len(content) > MOST_BYTES:
        raise ManifestError(name, None, None, f"is larger than {MOST_BYTES >> 20} MiB, expected manifests")
    return content


def _display(path: str) -> str:
    return "standard input" if path == STDIN else path


def _objects(file: str, documents: Sequence[Document]) -> list[Manifest]:
    return [
        manifest
        for number, document in enumerate(documents, start=1)
        if document.value is not None  # nothing but comments between two `---`
        for manifest in _unpacked(file, number, document.value, document.place)
    ]


def _unpacked(file: str, number: int, value: Any, place: Place) -> Iterator[Manifest]:
    """Yield the object, or those in a list: `kind: List` of kubectl, `ResourceClaimList` and the like of the API."""
    _check_object(file, value, place)
    if not value["kind"].endswith("List") or "items" not in value:
        yield Manifest(value, Source(file, number, place))
        return
    items, items_place = value["items"], place.at(("items",))
    if not isinstance(items, list):
        raise _error(file, items_place, f"items is {_shown(items)}, expected a list of objects")
    for index, item in enumerate(items):
        yield from _unpacked(file, number, _typed(item, value), items_place.at((index,)))


def _typed(item: Any, of: Mapping[str, Any]) -> Any:
    """Return an item with the type that only its list states, for so the API answers."""
    if of["kind"] == "List" or not isinstance(item, dict) or "kind" in item:
        return item
    return {"apiVersion": of["apiVersion"], "kind": of["kind"].removesuffix("List"), **item}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(value.get(key) and isinstance(value[key], str) for key in _TYPE_KEYS)


_TYPE_KEYS = ("apiVersion", "kind")


def _check_object(file: str, value: Any, place: Place) -> None:
    if not isinstance(value, dict):
        raise _error(file, place, f"{_shown(value)}, expected a Kubernetes object (a mapping with apiVersion and kind)")
    for key in _TYPE_KEYS:
        if key not in value:
            raise _error(file, place, f"no {key}, expected a Kubernetes object with apiVersion and kind")
        if not value[key] or not isinstance(value[key], str):
            raise _error(
                file, place.at((key,)), f"{key} is {_shown(value[key])}, expected text such as {_EXAMPLE[key]}"
            )


_EXAMPLE = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}


def _error(file: str, place: Place, message: str) -> ManifestError:
    return ManifestError(file, place.line, place.column, message)


def _shown(value: Any) -> str:
    """Name a value in a message: 40 characters of a scalar, else its form."""
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
