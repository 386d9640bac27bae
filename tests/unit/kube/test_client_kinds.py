"""Every kind is looked into before any thread decodes it: msgspec 0.22.0 crashes where two threads do so at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_PROGRAM = """
import json, sys
import msgspec

looked_into = set()
decoder = msgspec.json.Decoder

class Noting:
    def __new__(cls, type=object, **options):
        looked_into.add(type)
        return decoder(type, **options)

msgspec.json.Decoder = Noting
__import__(sys.argv[1])
from dracaena.api.objects import KubeObject

def kinds(base):
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)

left = [kind.__qualname__ for kind in kinds(KubeObject) if kind not in looked_into]
print(json.dumps([len(list(kinds(KubeObject))), sorted(left)]))
"""


@pytest.mark.parametrize("module", ["dracaena.kubelet_plugin.program", "dracaena.controller.program"])
def test_a_program_has_looked_into_each_kind_that_it_knows_once_it_is_imported(module: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", _PROGRAM, module], capture_output=True, text=True, check=True)
    known, left = json.loads(done.stdout)
    assert left == []
    assert known > 10
