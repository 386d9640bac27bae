from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from dracaena.api.errors import BadInputError
from dracaena.process.settings import DRIVER_NAME, UID, Layers, add_arguments, load, option, read_layers


@dataclass(frozen=True, slots=True)
class Settings:
    node_name: str = option(help="this node")
    workers: int = option(4, help="threads")
    wait_s: float = option(1.5, help="pause in seconds, at most 100 %")
    verbose: bool = option(False, help="say more")
    form: str = option("json", help="how", choices=("json", "text"))
    kubeconfig: str | None = option(None, help="file")
    driver_name: str = option("gpu.example", help="driver", form=DRIVER_NAME)
    pod_uid: str = option("", help="pod", form=UID)
    threads: int = option(2, help="threads", least=1)


def resolve(*flags: str, environment: dict[str, str] | None = None) -> Settings:
    parser = argparse.ArgumentParser()
    add_arguments(parser, Settings)
    return load(Settings, parser.parse_args(flags), environment or {})


def test_defaults_hold_when_nothing_is_given() -> None:
    assert resolve("--node-name", "n") == Settings("n", 4, 1.5, False, "json", None)


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("node-name: from-file\nworkers: 1\nwait-s: 9\nverbose: true\n")
    environment = {"DRACAENA_CONFIG": str(file), "DRACAENA_WORKERS": "2", "DRACAENA_NODE_NAME": "from-env"}
    settings = resolve("--node-name", "from-flag", environment=environment)
    assert settings == Settings("from-flag", 2, 9.0, True, "json", None)


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        ((), {}, "--node-name (or DRACAENA_NODE_NAME)"),
        (("--node-name", "n", "--workers", "many"), {}, "--workers: 'many' is not a whole number"),
        (("--node-name", "n"), {"DRACAENA_WAIT_S": "soon"}, "DRACAENA_WAIT_S: 'soon' is not a number"),
        (("--node-name", "n", "--verbose", "1"), {}, "--verbose: '1' is not true or false"),
        (("--node-name", "n", "--form", "xml"), {}, "--form: 'xml' is not one of json, text"),
        (("--node-name", "n", "--wait-s", "nan"), {}, "--wait-s: 'nan' is not a number"),
        (("--node-name", "n", "--wait-s", "inf"), {}, "--wait-s: 'inf' is not a number"),
        (("--node-name", "n", "--threads", "0"), {}, "--threads: '0' is too small, expected 1 or more"),
        (("--node-name", "n", "--driver-name", "../x"), {}, "--driver-name: '../x' is not a DNS name"),
        (("--node-name", "n", "--driver-name", "a" * 64), {}, "is not a DNS name of at most 63 characters"),
        (("--node-name", "n", "--driver-name", "a.b\n"), {}, "is not a DNS name"),
        (("--node-name", "n", "--pod-uid", "../../x"), {}, "--pod-uid: '../../x' is not a UID"),
    ],
)
def test_bad_value_names_layer_value_and_expectation(
    flags: tuple[str, ...], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        resolve(*flags, environment=environment)
    assert message in str(caught.value)


def endless(first: str, form: str) -> str:
    """A file that stands for 9 to the power of 40 values: each is nine times the one before."""
    more = (f"a{n}: &a{n} {form.format(', '.join([f'*a{n - 1}'] * 9))}\n" for n in range(1, 41))
    return f"{first}a0: &a0 {{x: 1}}\n{''.join(more)}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodename: x\n", "unknown nodename; did you mean node-name?; known: node-name, workers"),
        ("colour: x\n", "unknown colour; known: node-name, workers"),
        ("- a\n", "holds a list, expected a map"),
        ("a: [\n", "is not YAML"),
        ("workers: true\n", "workers: True is not a whole number"),
        ("workers: [1]\n", "workers: [1] is not a whole number"),
        ("workers: 1.9\n", "workers: 1.9 is not a whole number"),
        ("wait-s: .nan\n", "wait-s: nan is not a number"),
        ("workers: 1\nworkers: 2\n", "key 'workers' appears twice, expected once"),
        ("workers: 2001-99-99\n", "is not YAML: month must be in 1..12"),
        (f"workers: {'9' * 5_000}\n", "is not YAML: "),
        ("? [a]\n: b\n", "is not YAML: "),
        ("[\n" * 1_500, "is nested too deeply"),
        (f"node-name: 0x{'f' * 5_000}\n", "node-name: a number beyond all bounds is not text"),
        (f"wait-s: 0x{'f' * 5_000}\n", "wait-s: a number beyond all bounds is not a number"),
        (f"? 0x{'f' * 5_000}\n: a\n", "unknown a number beyond all bounds; known: "),
        (f"workers: {'w' * 5_000}\n", "...wwwwww"),
        ("workers: &a [*a]\n", "alias *a, expected at most 100, each of a value without aliases"),
        (endless("workers: 1\n", "[{}]"), "alias *a1, expected"),
        (endless("workers: 1\n", "{{<<: [{}]}}"), "alias *a1, expected"),
        (f"workers: &a [1]\nx: [{'*a, ' * 101}]\n", "alias *a, expected at most 100"),
    ],
)
def test_bad_file_is_refused_with_its_name(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(BadInputError) as caught:
        resolve("--node-name", "n", "--config", str(file))
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_endless_file_is_refused_and_not_read_into_memory() -> None:
    with pytest.raises(BadInputError, match="settings file /dev/zero is larger than 1 MiB"):
        resolve("--node-name", "n", "--config", "/dev/zero")


def test_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="No such file"):
        resolve("--node-name", "n", "--config", str(tmp_path / "none.yaml"))


def test_help_shows_variable_default_and_choices() -> None:
    parser = argparse.ArgumentParser(prog="x", formatter_class=argparse.HelpFormatter)
    add_arguments(parser, Settings)
    text = " ".join(parser.format_help().split())
    assert "threads; default 4 [DRACAENA_WORKERS]" in text
    assert "--form json|text" in text
    assert "this node; required [DRACAENA_NODE_NAME]" in text
    assert "at most 100 %" in text
    assert "--verbose true|false say more; default false [DRACAENA_VERBOSE]" in text


def test_variables_that_kubernetes_makes_for_a_service_of_our_name_do_no_harm() -> None:
    environment = {"DRACAENA_CONTROLLER_SERVICE_HOST": "10.0.0.1", "DRACAENA_PORT": "tcp://10.0.0.1:443"}
    assert resolve("--node-name", "n", environment=environment).workers == 4


@dataclass(frozen=True, slots=True)
class Sectioned:
    node_name: str = option("", help="this node", in_sections=False)
    workers: int = option(4, help="threads")
    form: str = option("json", help="how", choices=("json", "text"))


def sectioned(tmp_path: Path, text: str, *flags: str, environment: dict[str, str] | None = None) -> Layers[Sectioned]:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    parser = argparse.ArgumentParser()
    add_arguments(parser, Sectioned)
    arguments = parser.parse_args(["--config", str(file), *flags])
    return read_layers(Sectioned, arguments, environment or {}, sectioned=True)


@dataclass(frozen=True, slots=True)
class Renamed:
    FORMER: ClassVar[Mapping[str, str]] = {"work-ers": "set workers"}

    workers: int = option(4, help="threads")


@pytest.mark.parametrize(
    ("flags", "environment", "text", "where"),
    [
        (["--work-ers=3"], {}, "", "--work-ers"),
        ([], {"DRACAENA_WORK_ERS": "3"}, "", "DRACAENA_WORK_ERS"),
        ([], {}, "work-ers: 3\n", "settings file .*/settings.yaml: work-ers"),
        ([], {}, "sections: {few: {work-ers: 3}}\n", "settings file .*/settings.yaml: section few: work-ers"),
    ],
)
def test_a_former_setting_is_refused_with_what_stands_in_its_place(
    tmp_path: Path, flags: list[str], environment: dict[str, str], text: str, where: str
) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    parser = argparse.ArgumentParser()
    add_arguments(parser, Renamed)
    assert "work-ers" not in parser.format_help()
    arguments = parser.parse_args(["--config", str(tmp_path / "settings.yaml"), *flags])
    with pytest.raises(BadInputError, match=f"^{where} is no longer a setting: set workers$"):
        read_layers(Renamed, arguments, environment, sectioned=True)


TWO = "workers: 1\nform: text\nsections:\n  few: {workers: 2}\n  none:\n"


@pytest.mark.parametrize(("section", "workers"), [("", 1), ("few", 2), ("none", 1), ("other", 1)])
def test_a_section_holds_above_the_rest_of_the_file(tmp_path: Path, section: str, workers: int) -> None:
    assert sectioned(tmp_path, TWO).resolve(section) == Sectioned(workers=workers, form="text")


def test_sections_may_have_their_settings_by_an_alias(tmp_path: Path) -> None:
    layers = sectioned(tmp_path, "sections:\n  few: &few {workers: 2}\n  more: *few\n  most: {<<: *few, form: json}\n")
    assert {layers.resolve(name).workers for name in ("few", "more", "most")} == {2}


def test_environment_and_flags_hold_above_a_section_which_says_so(tmp_path: Path) -> None:
    layers = sectioned(tmp_path, TWO, "--workers", "9", environment={"DRACAENA_FORM": "json"})
    assert layers.resolve("few") == Sectioned(workers=9, form="json")
    assert layers.overruled("few") == ("workers",)
    assert layers.overruled("none") == layers.overruled("other") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sections: [few]\n", "sections holds a list, expected a map"),
        ("sections: {few: 3}\n", "section few holds a int, expected a map"),
        (
            "sections: {few: {werkers: 3}}\n",
            "section few: unknown werkers; did you mean workers?; known: node-name, workers, form",
        ),
        ("sections: {few: {workers: many}}\n", "section few: workers: 'many' is not a whole number"),
        ("sections: {few: {form: xml}}\n", "section few: form: 'xml' is not one of json, text"),
        ("sections: {few: {node-name: x}}\n", "section few: node-name cannot be in a section"),
        ("sections: {12: {}}\n", "sections: 12 is not the name of a section"),
        ("sections: {a/b: {}}\n", "sections: 'a/b' is not the name of a section"),
        ("sections: {few: {sections: {}}}\n", "section few: unknown sections"),
        ("werkers: 3\n", "unknown werkers; did you mean workers?; known: node-name, workers, form, sections"),
    ],
)
def test_a_mistake_in_any_section_is_told_at_once(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        sectioned(tmp_path, text)
    assert message in str(caught.value)


def test_a_program_without_sections_refuses_them(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("node-name: n\nsections: {}\n")
    with pytest.raises(BadInputError, match="unknown sections"):
        resolve("--config", str(file))
