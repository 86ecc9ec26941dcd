"""What `transformers` exports, read once where it reads it twice.

While it is imported, the package and `transformers.models` each read the 2,700 files of its models
for the names in them. The second reading takes a tenth of the time of all that a zygote imports.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

READER: Final = "transformers.utils.import_utils"


def read_once() -> None:
    """Have `transformers` keep what it reads; call before it is imported."""
    sys.meta_path.insert(0, _ReaderFinder())


class _ReaderFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != READER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _ReaderLoader(fullname, spec.origin)
        return spec


class _ReaderLoader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        read = functools.cache(module.create_import_structure_from_path)

        def once(path: str | os.PathLike[str]) -> object:
            folder = Path(path)
            return read(str(folder.parent if folder.is_file() else folder))

        module.create_import_structure_from_path = once  # type: ignore[attr-defined]
