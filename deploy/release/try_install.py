"""Install the command by name from the wheels of a release, with no index and into an empty environment, and run it.

Run at the end of `make release`: an install that needs one more package is found here, and not by the first user.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "dist" / "release" / "wheels"
CLASSES = ROOT / "deploy" / "deviceclasses"


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, help="a Python of the version that the wheels are for")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder to install from (dist/release/wheels)")
    options = parser.parse_args()
    try:
        said = try_install(options.python, options.wheels)
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        sys.stderr.write(f"release: {command} ended with {error.returncode}\n{error.stdout}{error.stderr}")
        return 1
    sys.stdout.write(f"release: installed from {options.wheels.name}/ alone; {said}\n")
    return 0


def try_install(python: Path, wheels: Path) -> str:
    """Return what the installed command says of its version and of our own classes. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="dracaena-install-") as name:
        environment = Path(name)
        _run(python, "-m", "venv", environment)
        pip = (environment / "bin" / "python", "-m", "pip", "--isolated", "--disable-pip-version-check")
        _run(*pip, "install", "--quiet", "--no-index", "--find-links", wheels, "dracaena")
        command = environment / "bin" / "dracaena"
        lines = [_run(command, "version"), _run(command, "validate", CLASSES).splitlines()[-1]]
    return "; ".join(line.strip() for line in lines)


def _run(*command: str | Path) -> str:
    # Not in the checkout, whose sources would be found first.
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/")  # noqa: S603 - ours
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
