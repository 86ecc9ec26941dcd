"""Typed gRPC stubs: generated from proto/ into plexclient; --check fails when they are stale."""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
TARGET = ROOT.parent / "client" / "plexclient" / "wire" / "v1"
HEADER = '"""Generated from proto/plexsvc/v1 by `make proto`; do not edit."""\n'


def generate(target: Path) -> None:
    """Write all stubs into `target`, with imports rewritten to plexclient.wire.v1."""
    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("plexsvc/v1/*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        plugin = Path(sys.executable).with_name("protoc-gen-mypy_grpc")
        messages = [f"--python_out={scratch}", f"--pyi_out={scratch}"]
        typed = f"--mypy_grpc_out=quiet,generate_concrete_servicer_stubs:{scratch}"
        services = [f"--grpc_python_out={scratch}", typed]
        plugins = f"--plugin=protoc-gen-mypy_grpc={plugin}"
        google = Path(grpc_tools.__file__).with_name("_proto")
        paths = [f"-I{ROOT}", f"-I{google}"]
        if protoc.main(["protoc", *paths, plugins, *messages, *services, *sources]) != 0:
            sys.exit("protoc failed; see its message above")
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(scratch).glob("plexsvc/v1/*")):
            text = path.read_text().replace(
                "from plexsvc.v1 import", "from plexclient.wire.v1 import"
            )
            (target / path.name).write_text(text)
    (target / "__init__.py").write_text(HEADER)


def stale_files() -> list[str]:
    """Return the names of committed stubs that differ from what proto/ generates."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / "v1"
        generate(fresh)
        names = sorted({p.name for p in fresh.iterdir()} | {p.name for p in TARGET.glob("*.py*")})
        _, mismatch, errors = filecmp.cmpfiles(fresh, TARGET, names, shallow=False)
    return sorted(mismatch + errors)


def main() -> None:
    """Generate, or compare and exit 1 when stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 when stale")
    if not parser.parse_args().check:
        generate(TARGET)
        return
    stale = stale_files()
    if stale:
        sys.exit(f"stubs are stale: {', '.join(stale)}; run `make proto` and commit the result")


if __name__ == "__main__":
    main()
