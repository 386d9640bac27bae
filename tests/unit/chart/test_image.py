"""What goes into the image: the Dockerfile's promises, and which wheels an earlier run leaves to be used again."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import packaging.tags
import pytest

ROOT = Path(__file__).resolve().parents[3]


def wheels_script() -> Any:
    spec = importlib.util.spec_from_file_location("image_wheels", ROOT / "deploy" / "image" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def requirement(name: str, *contents: bytes) -> str:
    hashes = " \\\n".join(f"    --hash=sha256:{hashlib.sha256(content).hexdigest()}" for content in contents)
    return f"{name}==1.0 \\\n{hashes}\n"


def test_build_context_holds_the_wheels_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == ["*", "!wheels"]


def test_build_takes_no_package_that_the_lock_does_not_name() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for flag in ("--no-index", "--require-hashes", "--only-binary :all:", "--no-deps"):
        assert flag in dockerfile
    assert "USER 65532:65532" in dockerfile


@pytest.mark.parametrize(
    "base",
    ["docker.io/library/python:3.13-slim-trixie", "python@sha256:" + "0" * 63, "python@sha256:" + "0" * 64 + "x"],
)
def test_a_release_is_not_built_on_a_base_that_may_change(base: str) -> None:
    done = make("release-image", f"BASE={base}")
    assert done.returncode != 0
    assert f"BASE is {base}, expected an image with its digest" in done.stderr


def test_a_release_is_built_on_a_base_with_a_digest() -> None:
    base = "docker.io/library/python@sha256:" + "0a" * 32
    done = make("--dry-run", "release-image", f"BASE={base}")
    assert done.returncode == 0, done.stderr
    assert f"--build-arg BASE={base}" in done.stdout


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_bytecode_holds_whatever_time_a_build_gives_to_files() -> None:
    """compileall leaves bytecode alone that another program wrote, with its source's time, unless it is forced."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    compiled = re.findall(r"compileall .*", dockerfile)
    assert len(compiled) == 2
    assert all("--invalidation-mode unchecked-hash" in line for line in compiled)
    assert " -f " in compiled[0]


def test_nothing_of_ours_loads_what_the_image_leaves_out(
    loaded_by_everything: tuple[list[str], dict[str, list[str]]],
) -> None:
    script = wheels_script()
    modules, distributions = loaded_by_everything
    names = {name.partition(".")[0] for name in modules}
    loaded = {one.lower().replace("_", "-") for name in names for one in distributions.get(name, ())}
    assert {"kubernetes", "grpcio"} <= loaded
    assert not loaded & script.ASYNCIO_HALF
    lock = {script._name(block) for block in script._blocks(script.LOCK.read_text(encoding="utf-8"))}
    assert lock > script.NOT_IN_THE_IMAGE, "no name that the lock does not hold"


def test_wheel_holds_the_manifests_of_the_demo_and_no_time_of_the_checkout_that_it_was_made_of(own_wheel: Path) -> None:
    with zipfile.ZipFile(own_wheel) as archive:
        files = archive.infolist()
        manifests = {one.filename.rpartition("/")[2] for one in files if "demo/manifests/" in one.filename}
    assert len(files) > 200
    assert manifests == {path.name for path in (ROOT / "demo" / "manifests").iterdir()}, "one of them is a link"
    assert {one.date_time for one in files} == {(1980, 1, 1, 0, 0, 0)}


def test_source_distribution_is_the_same_bytes_each_time_and_makes_the_wheel_of_a_checkout(
    own_wheel: Path, tmp_path: Path
) -> None:
    script = wheels_script()
    (tmp_path / "again").mkdir()
    again = script._own_wheel(tmp_path / "source", tmp_path / "again")
    assert again.read_bytes() == own_wheel.read_bytes()
    (first,), (second,) = (wheel.parent.glob("dracaena-*.tar.gz") for wheel in (own_wheel, again))
    assert first.read_bytes() == second.read_bytes()
    script._pip(
        "wheel", "--no-deps", "--no-index", "--no-build-isolation", f"--wheel-dir={tmp_path}", str(tmp_path / "source")
    )
    (of_checkout,) = tmp_path.glob("*.whl")
    assert contents(of_checkout) == contents(own_wheel)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def test_wheels_of_an_earlier_run_for_the_same_target_are_used_again_by_their_hashes(tmp_path: Path) -> None:
    earlier, target = tmp_path / "earlier", tmp_path / "target"
    earlier.mkdir()
    target.mkdir()
    (earlier / "requirements.txt").write_text("# for this machine\n...")
    (earlier / "a-1.0-py3-none-any.whl").write_bytes(b"a for this machine")
    (earlier / "b-1.0-py3-none-any.whl").write_bytes(b"b")
    blocks = [requirement("a", b"a for another machine", b"a for this machine"), requirement("b", b"b")]
    assert not wheels_script()._reused(earlier, "# for another machine\n", blocks, target)
    assert list(target.iterdir()) == []
    assert wheels_script()._reused(earlier, "# for this machine\n", blocks, target)
    assert sorted(path.name for path in target.iterdir()) == ["a-1.0-py3-none-any.whl", "b-1.0-py3-none-any.whl"]


def test_one_wheel_that_is_not_the_one_of_the_lock_has_all_fetched_anew(tmp_path: Path) -> None:
    earlier, target = tmp_path / "earlier", tmp_path / "target"
    earlier.mkdir()
    target.mkdir()
    (earlier / "requirements.txt").write_text("# for this machine\n...")
    (earlier / "a-1.0-py3-none-any.whl").write_bytes(b"a")
    (earlier / "b-1.0-py3-none-any.whl").write_bytes(b"b, tampered with")
    blocks = [requirement("a", b"a"), requirement("b", b"b")]
    assert not wheels_script()._reused(earlier, "# for this machine\n", blocks, target)
    assert list(target.iterdir()) == []


def test_what_only_an_install_by_name_needs_is_fetched_and_stays_out_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, fetched = wheels_script(), list[str]()

    def own_wheel(_: Path, wheels: Path) -> Path:
        (wheels / "dracaena-1.0-py3-none-any.whl").write_bytes(b"ours")
        return wheels / "dracaena-1.0-py3-none-any.whl"

    monkeypatch.setattr(script, "_own_wheel", own_wheel)
    monkeypatch.setattr(script, "_download", lambda lock, *_: fetched.extend(names(lock)))

    def names(lock: Path) -> list[str]:
        blocks = script._blocks(lock.read_text(encoding="utf-8"))
        return [script._name(block) for block in blocks if not block.startswith("#")]

    script.make(tmp_path / "image", "3.13", [], script.NOT_IN_THE_IMAGE)
    assert not script.NOT_IN_THE_IMAGE & set(fetched)
    image = names(tmp_path / "image" / "requirements.txt")
    assert image == [*fetched, "dracaena"]
    fetched.clear()
    script.make(tmp_path / "installable", "3.13", [], script.NEVER_INSTALLED)
    assert set(fetched) - set(image) == script.ASYNCIO_HALF
    assert names(tmp_path / "installable" / "requirements.txt") == image
    assert " --installable " in make("--dry-run", "wheels").stdout


def test_platforms_have_all_names_that_pip_has_for_them() -> None:
    """Of glibc 2.17 and later: whatever pip itself takes on this machine, old names too."""
    newest, machine = packaging.tags.platform_tags(), platform.machine()
    names = [name for name in newest if name.startswith("manylinux")]
    ours = wheels_script().platforms("linux", machine)
    first = next(i for i, name in enumerate(names) if name in ours)
    last = names.index(f"manylinux_2_16_{machine}") if f"manylinux_2_16_{machine}" in names else len(names)
    assert names[first:last] == ours[ours.index(names[first]) :]


def test_lock_is_split_into_requirements_with_their_hashes() -> None:
    blocks = wheels_script()._blocks((ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8"))
    assert len(blocks) > 30
    assert all("==" in block.splitlines()[0] and "--hash=sha256:" in block for block in blocks)
    assert sum(block.startswith("grpcio==") for block in blocks) == 1
