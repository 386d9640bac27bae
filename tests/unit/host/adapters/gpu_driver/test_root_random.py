"""A search for driver roots, broken in any way, of which a spec would give containers what it must not.

Hosts as packages make them are damaged at random: files lost, emptied, made folders or pipes, links that loop, lead out
of the root or to what is not the driver's, libraries of other versions, names that no spec can hold, caches of broken
bytes, device nodes of other devices. Either a spec keeps all rules below, or the error names what is really missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.host.facts.troubles import GpuDriverTroubleError
from dracaena.kubelet_plugin.adapters.gpu_driver import device_nodes
from dracaena.kubelet_plugin.adapters.gpu_driver import files as gpu_driver_files
from dracaena.kubelet_plugin.adapters.gpu_driver.device_nodes import DeviceNodesMissingError
from dracaena.kubelet_plugin.device_kinds.cdi_spec import claim_spec
from dracaena.kubelet_plugin.gpu_driver.installation import GpuDriverFilesMissingError
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from support.driver_trees import LAYOUTS, Layout, installation_of, make_host, nodes_of
from support.elf import library
from support.gpu_driver_root import look_at_text
from support.ld_so_cache import ld_so_cache

CLAIM = ClaimReference("default", "claim", "uid")  # type: ignore[arg-type]
SECRET = "/outside/secret"
NAMES = ("operator-580", "operator-535-alternatives", "flat-580", "gke-535", "left-overs-550", "divided-580")

EXAMPLES, MANY_EXAMPLES = 30, 1_000
"""Damaged hosts, some 30 ms each."""

SEED = 10
"""Of the few: each fault below is found among them, and there are specs, missing nodes and missing libraries."""

_WRONG_NODE = re.compile(r"(\S+) (?:is missing|is not a character device|is device)")
_ESSENTIAL = re.compile(r"lib(cuda|nvidia-ml)\.so|/dev/nv|ld\.so\.cache|/socket")
_MISSING_LIBRARY = re.compile(r"no (lib\S+\.so\.[0-9.]+[0-9])")


@dataclass(frozen=True, slots=True)
class Damage:
    """One change of a host: `place` chooses among its paths, `which` among the ways to break that one."""

    kind: str
    place: int
    which: int
    data: bytes = b""


DAMAGES = st.lists(
    st.builds(
        Damage,
        st.sampled_from(
            (
                "lose",
                "empty",
                "junk",
                "folder",
                "pipe",
                "link",
                "stale",
                "odd name",
                "cache",
                "numbers",
                "soname",
                "pipes of MPS",
            )
        ),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
        st.binary(max_size=64),
    ),
    min_size=1,
    max_size=6,
)


def targets(layout: Layout) -> tuple[str, ...]:
    """Return where a planted link may lead: out of the root by many ways, nowhere, in a circle, to what is not ours."""
    up = "../" * 12
    return (
        *(SECRET, f"{up}outside/secret", f"/../../..{SECRET}", "/etc/passwd", "/", ".", "..", "/proc", "nowhere"),
        *("loop", f"{layout.folder}/libc.so.6", "/usr/lib/firmware", f"{up}{layout.driver_root}/usr/bin/nvidia-smi"),
        *("/" + "a" * 300, "/usr/bin:/bin", "/tmp\n"),
    )


def _paths(root: Path) -> Iterator[str]:
    """Yield all that may be damaged. As texts: hundreds of paths for each damage."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in ("outside", "proc")]
        yield from (f"{folder}/{name}" for name in (*folders, *files))


def damage(host: Path, layout: Layout, each: Damage) -> None:
    root = host / layout.driver_root.lstrip("/")
    paths = sorted(_paths(root))
    essential = [path for path in paths if _ESSENTIAL.search(path)]
    path = Path((essential if each.which % 3 == 0 and essential else paths)[each.place % len(essential or paths)])
    folder = path.parent
    match each.kind:
        case "stale":
            folder = root / layout.folder.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / f"libcuda.so.5{each.which % 100:02}.1", library("libcuda.so.1"))
        case "odd name":
            name = ("libé", "lib:x", "lib\n", "lib\udcff", "lib x", "..lib")[each.which % 6]
            _write(folder / f"{name}.so.{layout.version}", library("../../x"))
        case "cache":
            cache = bytearray(ld_so_cache({"libcuda.so.1": "/outside/libcuda.so.1", "libnvidia-ml.so.1": "/.."}))
            for place, value in zip(range(each.place % len(cache), len(cache), 7), each.data, strict=False):
                cache[place] = value
            _write(root / "etc/ld.so.cache", bytes(cache))
        case "pipes of MPS":
            (root / "tmp").mkdir(exist_ok=True)
            _replace(root / "tmp/nvidia-mps", lambda: (root / "tmp/nvidia-mps").symlink_to(SECRET))
        case "soname":
            soname = ("..", ".", "a/b", "", "libcuda.so.1", "::", "libx.so")[each.which % 7]
            _replace(path, lambda: path.write_bytes(library(soname)))
        case "numbers":
            nodes = sorted((host / layout.dev_root.lstrip("/") / "dev").glob("nvidia*"))
            node = nodes[each.place % len(nodes)] if nodes else root / "dev"
            _write(node, f"{195 + each.which % 2}:{each.which % 256}".encode())
        case "link":
            _replace(path, lambda: path.symlink_to(targets(layout)[each.which % len(targets(layout))]))
        case "lose":
            _replace(path, lambda: None)
        case "empty":
            _replace(path, path.touch)
        case "junk":
            _replace(path, lambda: path.write_bytes(b"\x7fELF\2\1\1" + each.data * 3))
        case "folder":
            _replace(path, path.mkdir)
        case "pipe":
            _replace(path, lambda: os.mkfifo(path))


def _replace(path: Path, make: Any) -> None:
    """Put something else at a path; one that an earlier damage took away stays so."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)
    try:
        make()
    except OSError:
        return


def _write(path: Path, data: bytes) -> None:
    """Put a file where there is a file or nothing."""
    if path.is_symlink() or path.is_dir() or not path.parent.is_dir():
        return
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def check_host(host: Path, layout: Layout) -> str:
    """Hold a host to the rules; return what came of it."""
    devices = [device for gpu in layout.gpus for device in gpu.devices()]
    prepared = PreparedClaim(CLAIM, tuple(devices))
    try:
        nodes = nodes_of(host, layout).of_claim(devices)
    except DeviceNodesMissingError as error:
        check_named_nodes(host, str(error))
        return "node"
    for node in (*nodes.control, *(node for each in nodes.devices.values() for node in each)):
        assert not is_wrong(host, node.host_path or node.path)
    try:
        edits = installation_of(host, layout).edits()
    except (GpuDriverFilesMissingError, GpuDriverTroubleError) as error:
        check_named_libraries(host, layout, str(error))
        return "library"
    spec = claim_spec(prepared, "gpu.dracaena.dev", nodes, edits)
    assert spec == claim_spec(prepared, "gpu.dracaena.dev", nodes, installation_of(host, layout).edits())
    check_mounts(host, layout, json.loads(spec)["containerEdits"]["mounts"])
    return "spec"


def check_named_nodes(host: Path, text: str) -> None:
    named = _WRONG_NODE.findall(text)
    assert named
    assert all(is_wrong(host, path) for path in named), text


def check_named_libraries(host: Path, layout: Layout, text: str) -> None:
    assert not any(is_reachable(host, layout, name) for name in _MISSING_LIBRARY.findall(text)), text


def check_mounts(host: Path, layout: Layout, mounts: list[dict[str, Any]]) -> None:
    places = [mount["containerPath"] for mount in mounts]
    assert places == sorted(set(places))
    for place in places:
        assert place == os.path.normpath(place)
        assert place.isprintable()
        assert ":" not in place
    sources = [PurePosixPath(mount["hostPath"]) for mount in mounts]
    on_the_way = {f"{host}{each}" for path in sources for each in (path, *path.parents) if each.name}
    assert not [each for each in on_the_way if os.path.islink(each)], "a runtime would follow it to somewhere else"  # noqa: PTH114
    versions = set()
    for path, mount in zip(sources, mounts, strict=True):
        assert path.is_relative_to(layout.driver_root)
        facts = (host / str(path).lstrip("/")).lstat()
        if "ro" in mount["options"]:
            assert stat.S_ISREG(facts.st_mode), path
        else:
            assert stat.S_ISSOCK(facts.st_mode) or (stat.S_ISDIR(facts.st_mode) and facts.st_uid == 0)
        match = re.fullmatch(r"libcuda\.so\.([0-9.]*\.[0-9.]*)", PurePosixPath(mount["containerPath"]).name)
        versions |= {match[1]} if match is not None else set()
    assert versions == {layout.version}


def is_wrong(host: Path, path: str) -> bool:
    """Whether a device node is not as this host's driver makes it, by the table of its own numbers."""
    numbers = {
        "nvidiactl": (195, 255),
        "nvidia-uvm": (510, 0),
        "nvidia-uvm-tools": (510, 1),
        "nvidia-modeset": (195, 254),
    }
    name = path.rpartition("/")[2]
    number = int(re.sub(r"\D", "", name) or 0)
    expected = numbers.get(name) or ((234 if "cap" in name else 195), number)
    seen = look_at_text(str(host / path.lstrip("/")))
    return seen is None or not seen.is_character_device or (seen.major, seen.minor) != expected


def is_reachable(host: Path, layout: Layout, name: str) -> bool:
    """Whether a library lies in the layout's own folder as a plain file under plain folders: the obvious case."""
    root = host / layout.driver_root.lstrip("/")
    path = root / layout.folder.lstrip("/") / name
    parts = [path, *path.parents]
    inside = [each for each in parts if each.is_relative_to(root) and each != root]
    # Unlike those of Path these raise nothing where a planted link is too long.
    return not layout.cached and os.path.isfile(path) and not any(map(os.path.islink, inside))  # noqa: PTH113


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, Path]]:
    """Give one whole host of each layout; each example damages a copy."""
    with tempfile.TemporaryDirectory() as folder:
        made = {name: Path(folder) / name for name in NAMES}
        for name, host in made.items():
            make_host(host, LAYOUTS[name])
            secret = host / SECRET.lstrip("/")
            secret.parent.mkdir()
            secret.write_text("secret")
        yield made


def search(hosts: dict[str, Path], examples: int = EXAMPLES) -> set[str]:
    """Damage hosts until a rule is broken; return what came of them."""
    came: set[str] = set()

    @seed(SEED)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(name=st.sampled_from(NAMES), damages=DAMAGES)
    def one(name: str, damages: list[Damage]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            host = Path(folder) / "host"
            shutil.copytree(hosts[name], host, symlinks=True, copy_function=os.link)  # damage never writes in place
            for each in damages:
                damage(host, LAYOUTS[name], each)
            came.add(check_host(host, LAYOUTS[name]))

    one()
    return came


def test_no_damaged_host_gives_containers_what_it_must_not(hosts: dict[str, Path]) -> None:
    assert search(hosts) == {"spec", "node", "library"}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_host_of_many_gives_containers_what_it_must_not(hosts: dict[str, Path]) -> None:
    assert search(hosts, MANY_EXAMPLES) == {"spec", "node", "library"}


def test_the_search_finds_a_root_that_lets_links_out(hosts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def followed(root: GpuDriverRoot, path: str) -> PurePosixPath | None:
        place = root.root / path.lstrip("/")
        return PurePosixPath(f"/{place.relative_to(root.root)}") if place.exists() else None

    monkeypatch.setattr(GpuDriverRoot, "resolve", followed)
    with pytest.raises(AssertionError):
        search(hosts)


def test_the_search_finds_a_node_that_is_not_looked_at(hosts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_nodes, "problem", lambda *_: None)
    with pytest.raises(AssertionError):
        search(hosts)


def test_the_search_finds_sockets_that_are_none(hosts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_driver_files, "_is_socket", lambda facts: facts is not None)
    with pytest.raises(AssertionError):
        search(hosts)
