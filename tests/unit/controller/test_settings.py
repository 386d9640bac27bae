from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from dracaena.api.errors import BadInputError
from dracaena.controller.settings import ControllerSettings
from dracaena.process.settings import add_arguments, load


def resolved(*arguments: str, **environment: str) -> ControllerSettings:
    parser = argparse.ArgumentParser()
    add_arguments(parser, ControllerSettings)
    return load(ControllerSettings, parser.parse_args(arguments), environment)


def test_every_default_is_a_value_that_is_taken() -> None:
    defaults = ControllerSettings()
    values = {**dataclasses.asdict(defaults), "topology_levels": [*defaults.topology_levels.labels]}
    given = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
    assert resolved(*given) == resolved() == defaults


def test_every_setting_can_be_given_by_flag_environment_and_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("starvation-wait-s: 60\nworkers: 2\nlog-level: debug\ntopology-levels: [gke, rack]\n")
    environment = {"DRACAENA_STARVATION_WAIT_S": "90", "DRACAENA_WORKERS": "3", "DRACAENA_CONFIG": str(path)}
    found = resolved("--starvation-wait-s=120", **environment)
    assert (found.starvation_wait_s, found.workers, found.log_level) == (120.0, 3, "debug")
    assert found.topology_levels.names == ("gce-topology-block", "gce-topology-subblock", "rack")
    assert resolved("--topology-levels=[]", **environment).topology_levels.names == ()


def test_every_setting_of_time_names_its_unit_in_name_and_help() -> None:
    for field in dataclasses.fields(ControllerSettings):
        if field.name.endswith("_s"):
            assert "second" in field.metadata["help"], field.name
            assert field.metadata["least"] is not None, field.name
        else:
            assert "second" not in field.metadata["help"], field.name


@pytest.mark.parametrize("value", ["-1", "soon", "nan", "inf"])
def test_a_wait_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(BadInputError, match="--starvation-wait-s"):
        resolved(f"--starvation-wait-s={value}")
