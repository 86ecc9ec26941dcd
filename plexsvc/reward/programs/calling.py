"""Script that calls `score(sample)` of a Python file: `calling.py FILE`, inside a sandbox.

It imports nothing of this package, because it is copied into the sandbox. What the file prints goes
to stderr, so that only the verdict is on stdout.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace


def main(path: str) -> None:
    """Score the sample in `sample.json`, and print the verdict."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sample = SimpleNamespace(**json.loads(Path("sample.json").read_text()))
    sys.path.insert(0, str(Path.cwd()))
    spec = importlib.util.spec_from_file_location("program", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is no Python file")
    module = sys.modules["program"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.score(sample)
    verdict = found if isinstance(found, dict) else {"score": float(found)}
    own.write(json.dumps(verdict) + "\n")
    own.flush()


if __name__ == "__main__":
    main(sys.argv[1])
