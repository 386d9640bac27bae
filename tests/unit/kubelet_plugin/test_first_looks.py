"""No thread of the plugin is the first to inspect a type that it decodes."""

from __future__ import annotations

import subprocess
import sys

FIRST_LOOKS = """
import dataclasses
import importlib
import pkgutil
import sys

import msgspec

import dracaena.kubelet_plugin as plugin
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.ledger import note_decoder

modules = [importlib.import_module(each.name) for each in pkgutil.walk_packages(plugin.__path__, plugin.__name__ + ".")]
own = {shape for module in modules for shape in vars(module).values() if isinstance(shape, type)}
kinds = [each for each in own if ".changes.kinds." in each.__module__ and hasattr(each, "rank")]
ChangeEngine(ledger=None, kinds=[each.__new__(each) for each in kinds], claims=None, gpu_lock=None)
documents = [each for each in own if issubclass(each, msgspec.Struct) and each.__module__.startswith(plugin.__name__)]
names = ("Record", "CcModeJournal", "Checkpoint")
journals = [each for each in own if dataclasses.is_dataclass(each) and ".journals." in each.__module__]
records = [each for each in journals if each.__name__.endswith(names)]

def look(_):
    raise SystemExit("a type is inspected only now")

assert hasattr(msgspec._utils, "_get_class_mro_and_typevar_mappings")
msgspec._utils._get_class_mro_and_typevar_mappings = look
for shape in (*documents, *records):
    try:
        msgspec.json.Decoder(shape)
    except SystemExit:
        raise SystemExit(f"{shape} is inspected only now")
for kind in kinds:
    note_decoder(kind.noted)
print(len(kinds) > 2, len(records) > 0, len(documents) > 8)
"""


def test_no_thread_is_the_first_to_look_into_a_type() -> None:
    """Two that do so at once crash the process: an error of msgspec that no lock of ours would be sure to cover."""
    done = subprocess.run([sys.executable, "-P", "-c", FIRST_LOOKS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("True True True\n", "", 0)
