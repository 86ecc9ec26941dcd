"""Node agents whose warm images import no framework, for tests that have a node do no work.

Such a zygote is warm at once, and forks as any other. What it forks may do nothing: the backend
`noop`. A process has such agents below it with what `environment` returns added to its own.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Final

from tests.fakes import fake_preload

HOOK: Final = """import importlib.util, sys
class Light:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("plexsvc.worker.preload", "plexsvc.rollout.preload"):
            return importlib.util.spec_from_file_location(name, {file!r})
sys.meta_path.insert(0, Light)
"""


def environment(directory: Path, *, preload: ModuleType = fake_preload) -> dict[str, str]:
    """Return environment variables that say so; what is read by them lies in `directory`.

    Where more than a few ranks of `noop` start, `preload` is `fake_noop_preload`.
    """
    place, file = directory / "light", str(preload.__file__)
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(HOOK.format(file=file))
    return {"PYTHONPATH": str(place)}
