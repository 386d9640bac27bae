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
from dracaena.kubelet_plugin.labels.cc_mode_notes import CcModeNotes
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.prepare.journals.cc_modes import NotedModes
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord
from dracaena.kubelet_plugin.prepare.journals.vgpu_layouts import VgpuRecord

modules = [importlib.import_module(each.name) for each in pkgutil.walk_packages(plugin.__path__, plugin.__name__ + ".")]
own = {shape for module in modules for shape in vars(module).values() if isinstance(shape, type)}
kinds = [each for each in own if ".changes.kinds." in each.__module__ and hasattr(each, "rank")]
CcModeNotes(None, None)
for record in (GpuRecord(), VgpuRecord()):
    LayoutNotes(None, None, "", record)
ChangeEngine(ledger=None, kinds=[each.__new__(each) for each in kinds], claims=None, gpu_lock=None)
structs = [each for each in own if issubclass(each, msgspec.Struct) and each.__module__.startswith(plugin.__name__)]
documents = [each for each in structs if not each.__module__.endswith(".cdi.spec")]  # those are written and never read
names = ("Record", "Checkpoint")
journals = [each for each in own if dataclasses.is_dataclass(each) and ".journals." in each.__module__]
notes = [GpuRecord, VgpuRecord, NotedModes]
records = [each for each in journals if each.__name__.endswith(names) and each not in notes]

def look(_):
    raise SystemExit("a type is inspected only now")

assert hasattr(msgspec._utils, "_get_class_mro_and_typevar_mappings")
msgspec._utils._get_class_mro_and_typevar_mappings = look
for shape in (*documents, *records):
    try:
        msgspec.json.Decoder(shape)
    except SystemExit:
        raise SystemExit(f"{shape} is inspected only now")
for noted in (*[kind.noted for kind in kinds], *notes):
    note_decoder(noted)
print(len(kinds) > 2, len(notes) > 0, len(records) > 0, len(documents) > 8)
"""


def test_no_thread_is_the_first_to_look_into_a_type() -> None:
    """Two that do so at once crash the process: an error of msgspec that no lock of ours would be sure to cover."""
    done = subprocess.run([sys.executable, "-P", "-c", FIRST_LOOKS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("True True True True\n", "", 0)
