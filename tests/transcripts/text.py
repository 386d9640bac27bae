"""A masked transcript as YAML that is pleasant to read: what fits on a line stays on one."""

from __future__ import annotations

from typing import Any

import yaml

from transcripts.session import Step

WIDTH = 116
"""Columns; a diff in an editor shows as many."""

INDENT = 2
SYNTAX = 4
"""Characters around one entry of a flow collection: quotes, or a colon, a comma and their blanks."""

HEADER = "# What a real kube-apiserver answers, recorded by `make e2e` (tests/transcripts). Not written by hand.\n"


class _Representer(yaml.representer.SafeRepresenter):
    def ignore_aliases(self, data: Any) -> bool:
        """Equal parts are written out again, not referred to."""
        return True


def transcript(title: str, steps: list[Step]) -> str:
    """The text of one golden file."""
    return HEADER + "\n".join([_yaml({"scenario": title}), *(_yaml([step]) for step in steps)])


def _yaml(value: Any) -> str:
    node = _Representer(sort_keys=False).represent_data(value)
    _lay_out(node, 0, is_step=True)
    # The emitter in C is many times as fast, and breaks lines within quotes otherwise than those that were recorded.
    dumper = yaml.SafeDumper if _has_line_break(node) else yaml.CSafeDumper
    return yaml.serialize(node, Dumper=dumper, width=WIDTH, allow_unicode=True)


def _has_line_break(node: yaml.Node) -> bool:
    if isinstance(node, yaml.MappingNode):
        return any(_has_line_break(part) for pair in node.value for part in pair)
    return any(map(_has_line_break, node.value)) if isinstance(node, yaml.SequenceNode) else "\n" in node.value


def _lay_out(node: yaml.Node, column: int, *, is_step: bool = False) -> int:
    """Choose block or flow style for each collection from the leaves up; returns the length in flow style."""
    if isinstance(node, yaml.SequenceNode):
        length = SYNTAX + sum(_lay_out(part, column + INDENT, is_step=is_step) for part in node.value)
    elif isinstance(node, yaml.MappingNode):
        pairs = [(len(key.value), _lay_out(part, column + INDENT)) for key, part in node.value]
        length = SYNTAX + sum(key + part for key, part in pairs)
    else:
        return len(node.value) + SYNTAX
    node.flow_style = not is_step and column + length <= WIDTH
    return length
