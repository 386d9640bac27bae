"""Layered settings: defaults, then a YAML file, then the environment, then flags; each option is declared once.

A program's settings are one frozen dataclass whose fields are made by option(). The same declaration makes the
flag, the environment variable, the key of the file and the line of --help. Its class variable FORMER, if there is one,
says what stands in place of settings that are no more: they are refused with that, in each layer. A program that runs
on unlike nodes may allow `sections` in its file: named groups of settings, one of which holds above the rest of the
file.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from dracaena.api import limits
from dracaena.api.errors import BadInputError

ENVIRONMENT_PREFIX = "DRACAENA_"

_MOST_BYTES = 1 << 20
"""Largest file that is read: a ConfigMap, where it comes from, holds no more."""

_MOST_ALIASES = 100
"""Most aliases of one file, each of which may stand for all of it: as many sections can have their settings by one."""

_MOST_SHOWN = 200
"""Characters of a text that a message shows: enough to find it in the file."""

_PRINTED = 10**18
"""Numbers from here on are not written out in messages: no setting is as large, and Python prints no endless ones."""

SECTIONS = "sections"
"""Key of the file: name of a section → its settings."""

_FORMER = "former "
"""Before the key of a former setting: its name among the arguments."""

S = TypeVar("S")


@dataclasses.dataclass(frozen=True, slots=True)
class TextForm:
    """What a text must look like: a pattern that matches all of it, and the same in words."""

    pattern: str
    expected: str


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    """What a setting must look like that is more than one value. Flags and variables give it as YAML."""

    read: Callable[[Any], Any]
    """From plain values to the field's; raises BadInputError in words that follow where they come from."""
    schema: Mapping[str, Any]
    """The same as JSON schema, for the chart."""
    metavar: str


DNS_SUBDOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"

DRIVER_NAME = TextForm(
    rf"(?=.{{1,{limits.DRIVER_NAME_BYTES}}}\Z){DNS_SUBDOMAIN}",
    f"a DNS name of at most {limits.DRIVER_NAME_BYTES} characters",
)
NODE_NAME = TextForm(rf"(?=.{{1,{limits.DNS_SUBDOMAIN_BYTES}}}\Z){DNS_SUBDOMAIN}", "the name of a Node: a DNS name")
SECTION = TextForm(
    rf"(?=.{{1,{limits.DNS_LABEL_BYTES}}}\Z)[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?",
    "the name of a section: a label value that is not empty",
)
WEB_CONFIG_HELP = (
    "Prometheus web-config file for TLS and basic auth of the metrics, reloaded when it changes; empty: neither"
)

UID = TextForm(r"[A-Za-z0-9-]{0,63}", "a UID: letters, digits and dashes, at most 63")


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,  # noqa: A002 - argparse's word
    choices: Sequence[str] | None = None,
    form: TextForm | None = None,
    least: float | None = None,
    in_sections: bool = True,
    structure: Structure | None = None,
) -> Any:
    """Declare one setting. Without a default it must be given. Fields are str, int, float or bool, or have a structure.

    `form` is for texts, `least` the smallest number that is taken. Without `in_sections` it may not stand in a section:
    it must be known before the section is.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "form": form,
        "least": least,
        "in_sections": in_sections,
        "structure": structure,
    }
    return dataclasses.field(default=default, metadata=metadata)


def add_arguments(parser: argparse.ArgumentParser, settings: type[Any]) -> None:
    """Add a flag for each field of `settings`, and --config, to a parser. Flags not given stay unset."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=None,
        help=f"YAML file with any of the settings below, named like the flags without the leading dashes "
        f"[{ENVIRONMENT_PREFIX}CONFIG]",
    )
    for field in dataclasses.fields(settings):
        parser.add_argument(
            _flag(field.name),
            dest=field.name,
            default=argparse.SUPPRESS,
            metavar=_metavar(settings, field),
            help=_help(field),
        )
    for key in _former(settings):
        parser.add_argument(f"--{key}", dest=f"{_FORMER}{key}", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


@dataclasses.dataclass(frozen=True, slots=True)
class Layers(Generic[S]):
    """What was given for a program's settings, layer by layer, checked already; field name → value."""

    settings: type[S]
    has_file: bool
    file: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, Any]
    flags: Mapping[str, Any]

    def resolve(self, section: str = "") -> S:
        """Combine the layers; a section that does not exist adds nothing. Raises BadInputError."""
        values = {**self.file, **self.sections.get(section, {}), **self.environment, **self.flags}
        missing = [
            field.name
            for field in dataclasses.fields(self.settings)  # type: ignore[arg-type]  # S is always a dataclass here
            if field.default is dataclasses.MISSING and field.name not in values
        ]
        if missing:
            wanted = ", ".join(f"{_flag(name)} (or {_variable(name)})" for name in missing)
            raise BadInputError(f"a required setting is missing: {wanted}")
        return self.settings(**values)

    def overruled(self, section: str) -> tuple[str, ...]:
        """Return which settings of a section the environment or a flag overrides; sorted."""
        return tuple(
            sorted(
                _key(name) for name in self.sections.get(section, {}) if name in self.environment or name in self.flags
            )
        )


def load(settings: type[S], arguments: argparse.Namespace, environment: Mapping[str, str]) -> S:
    """Resolve all layers into one value of `settings`. Raises BadInputError as read_layers() does."""
    return read_layers(settings, arguments, environment).resolve()


def read_layers(
    settings: type[S], arguments: argparse.Namespace, environment: Mapping[str, str], *, sectioned: bool = False
) -> Layers[S]:
    """Read and check what was given; `sectioned` says whether the file may have sections.

    Raises BadInputError naming the layer, the setting, what was seen and what was expected. An unknown key of the file
    is refused: a misspelt setting would silently not hold. An unknown DRACAENA_ variable is not: Kubernetes itself puts
    variables of that prefix into pods, for Services of that name.
    """
    for key, instead in _former(settings).items():
        flags = [f"--{key}"] if hasattr(arguments, f"{_FORMER}{key}") else []
        for given in (*flags, *({_variable(key)} & environment.keys())):
            raise BadInputError(f"{given} is no longer a setting: {instead}")
    path = getattr(arguments, "config", None) or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    document = _document(Path(path)) if path else {}
    where = f"settings file {path}"
    sections = _sections(settings, document.pop(SECTIONS, {}), where) if sectioned else {}
    return Layers(
        settings=settings,
        has_file=bool(path),
        file=_from_map(settings, document, where, further=(SECTIONS,) if sectioned else ()),
        sections=sections,
        environment=_from_environment(settings, environment),
        flags={
            field.name: _convert(settings, field, getattr(arguments, field.name), _flag(field.name))
            for field in dataclasses.fields(settings)  # type: ignore[arg-type]
            if hasattr(arguments, field.name)
        },
    )


class StrictLoader(yaml.SafeLoader):
    """Refuses duplicate keys: the first one would silently have no effect. Refuses aliases of what holds an alias, and
    many of them: a small file could stand for an endless one.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._aliases = 0
        self._plain: set[str] = set()  # anchors of what is read to its end and holds no alias

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:  # noqa: D102 - as in the base class
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML
        if self.check_event(yaml.AliasEvent):
            self._aliases += 1
            if self._aliases > _MOST_ALIASES or event.anchor not in self._plain:
                problem = f"alias *{event.anchor}, expected at most {_MOST_ALIASES}, each of a value without aliases"
                raise yaml.composer.ComposerError(problem=problem, problem_mark=event.start_mark)
        before = self._aliases
        node = super().compose_node(parent, index)
        if event.anchor is not None and self._aliases == before:
            self._plain.add(event.anchor)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: D102, FBT001 - as in the base class
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"key {key.value!r} appears twice, expected once"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _document(path: Path) -> dict[Any, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise BadInputError(
                f"settings file {path} is larger than {_MOST_BYTES >> 20} MiB, expected a map of settings"
            )
        document = yaml.load(text.decode(), StrictLoader)  # noqa: S506 - a safe loader with one more check
    except OSError as error:
        raise BadInputError(f"settings file {path}: {error.strerror}") from error
    except RecursionError as error:
        raise BadInputError(f"settings file {path} is nested too deeply, expected a map of settings") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, a day or a number that there is not
        raise BadInputError(f"settings file {path} is not YAML: {' '.join(str(error).split())}") from error
    return _map({} if document is None else document, f"settings file {path}")


def _map(value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise BadInputError(f"{where} holds a {type(value).__name__}, expected a map of settings")
    return value


def _sections(settings: type[Any], document: Any, where: str) -> dict[str, dict[str, Any]]:
    """Read all sections, not only the one that applies: a mistake must not wait for the node that uses it."""
    found = {}
    for name, section in _map({} if document is None else document, f"{where}: {SECTIONS}").items():
        if not isinstance(name, str) or not re.fullmatch(SECTION.pattern, name):
            raise BadInputError(f"{where}: {SECTIONS}: {_seen(name)} is not {SECTION.expected}")
        place = f"{where}: section {name}"
        given = _map({} if section is None else section, place)
        found[name] = _from_map(settings, given, place)
        early = sorted(
            _key(field.name)
            for field in dataclasses.fields(settings)
            if field.name in found[name] and not field.metadata["in_sections"]
        )
        if early:
            raise BadInputError(f"{place}: {early[0]} cannot be in a section: it is needed before one is chosen")
    return found


def _from_map(
    settings: type[Any], document: Mapping[Any, Any], where: str, *, further: Sequence[str] = ()
) -> dict[str, Any]:
    fields = {_key(field.name): field for field in dataclasses.fields(settings)}
    unknown = sorted(key if isinstance(key, str) else _seen(key) for key in document if key not in fields)
    for key in unknown:
        if key in (former := _former(settings)):
            raise BadInputError(f"{where}: {key} is no longer a setting: {former[key]}")
    if unknown:
        known = (*fields, *further)
        near = difflib.get_close_matches(unknown[0], known, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise BadInputError(f"{where}: unknown {', '.join(unknown)}{meant}; known: {', '.join(known)}")
    return {
        fields[key].name: _convert(settings, fields[key], value, f"{where}: {key}") for key, value in document.items()
    }


def _from_environment(settings: type[Any], environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        field.name: _convert(settings, field, environment[_variable(field.name)], _variable(field.name))
        for field in dataclasses.fields(settings)
        if _variable(field.name) in environment
    }


def _convert(settings: type[Any], field: dataclasses.Field[Any], value: Any, where: str) -> Any:
    if field.metadata["structure"] is not None:
        return _structured(field.metadata["structure"], value, where)
    wanted = _type(settings, field)
    converted = _plain(wanted, value)
    if converted is None:
        raise BadInputError(f"{where}: {_seen(value)} is not {_WORDS[wanted]}")
    choices, form, least = (field.metadata[key] for key in ("choices", "form", "least"))
    if choices and converted not in choices:
        raise BadInputError(f"{where}: {_seen(value)} is not one of {', '.join(choices)}")
    if form is not None and not re.fullmatch(form.pattern, converted):
        raise BadInputError(f"{where}: {_seen(value)} is not {form.expected}")
    if least is not None and converted < least:
        raise BadInputError(f"{where}: {_seen(value)} is too small, expected {least:g} or more")
    return converted


def _structured(structure: Structure, value: Any, where: str) -> Any:
    try:
        given = yaml.load(value, StrictLoader) if isinstance(value, str) else value  # noqa: S506 - see StrictLoader
        return structure.read(given)
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInputError(f"{where}: {_seen(value)} is not YAML: {' '.join(str(error).split())}") from error


class _Short(reprlib.Repr):
    """Values for messages: not more than some lines, and no number that Python does not print."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = _MOST_SHOWN

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if abs(x) < _PRINTED else "a number beyond all bounds"


_seen = _Short().repr


def _plain(wanted: type, value: Any) -> Any:
    """Return a value of the wanted type, None when it is no such value; nothing is rounded."""
    if wanted is bool:
        return _bool(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if wanted is int and isinstance(value, float):
        return None
    try:
        converted = wanted(value)
    except (ValueError, OverflowError):
        return None
    return None if isinstance(converted, float) and not math.isfinite(converted) else converted


_WORDS: Mapping[type, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _bool(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).lower())


def _type(settings: type[Any], field: dataclasses.Field[Any]) -> type:
    """Return the plain type of a field; `str | None` counts as str: None only ever comes from the default."""
    hint = _hints(settings)[field.name]  # type: ignore[arg-type]  # a class can be hashed
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    return typing.cast("type", hint)


@functools.cache
def _hints(settings: type[Any]) -> Mapping[str, Any]:
    """Return the types of all fields: Python evaluates them anew at each call, all of them for the one asked for."""
    return typing.get_type_hints(settings)


def _former(settings: type[Any]) -> Mapping[str, str]:
    """Return the settings that are no more, by key, with what to do instead."""
    found: Mapping[str, str] = getattr(settings, "FORMER", {})
    return found


def _key(name: str) -> str:
    return name.replace("_", "-")


def _flag(name: str) -> str:
    return f"--{_key(name)}"


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace("-", "_")


def _metavar(settings: type[Any], field: dataclasses.Field[Any]) -> str:
    if field.metadata["structure"] is not None:
        metavar: str = field.metadata["structure"].metavar
        return metavar
    wanted = _type(settings, field)
    choices = ("true", "false") if wanted is bool else field.metadata["choices"]
    return "|".join(choices) if choices else wanted.__name__.upper()


def _help(field: dataclasses.Field[Any]) -> str:
    default = ""
    if field.default is dataclasses.MISSING:
        default = "; required"
    elif field.default not in ("", None) and field.metadata["structure"] is None:
        default = f"; default {str(field.default).lower() if isinstance(field.default, bool) else field.default}"
    return f"{field.metadata['help']}{default} [{_variable(field.name)}]".replace("%", "%%")
