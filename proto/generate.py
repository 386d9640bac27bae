"""Generate the Python code of every .proto file: `python -m dracaena.proto.generate [FOLDER]`.

Without FOLDER the files beside the .proto files are replaced. The generator is grpcio-tools as pinned in
requirements/dev.txt: another version writes other files, and a test compares them with what is committed.
"""

from __future__ import annotations

import sys
from pathlib import Path

IMPORT_ROOT = Path(__file__).absolute().parent.parent.parent
"""The folder that holds `dracaena`: .proto paths start there, so that they are unique in protobuf's global pool."""


def proto_files() -> tuple[str, ...]:
    """Return all .proto files, relative to the import root, sorted."""
    folder = Path(__file__).absolute().parent
    return tuple(str(path.relative_to(IMPORT_ROOT)) for path in sorted(folder.glob("*/*/*.proto")))


def generate(target: Path) -> None:
    """Write `dracaena/proto/…/*_pb2.py`, `*_pb2.pyi` and `*_pb2_grpc.py` below target.

    Raises RuntimeError when the compiler refuses a file; it has then said why on standard error.
    """
    from grpc_tools import protoc

    status = protoc.main(
        [
            "protoc",
            f"--proto_path={IMPORT_ROOT}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            f"--grpc_python_out={target}",
            *proto_files(),
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else IMPORT_ROOT)
