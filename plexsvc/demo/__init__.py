"""`plexctl demo`: two real RL jobs on one device, from a random model to figures and a verdict."""

from __future__ import annotations

from pathlib import Path


def run(preset: str, out_dir: Path, as_json: bool) -> int:
    """Run `preset` and leave its files in `out_dir`; return 0, or 1 when a check failed.

    Raises:
        PlexError: `bad_request` for an unknown preset; what a part of the service answered.
    """
    from plexsvc.demo.runner import run_demo

    return run_demo(preset, out_dir=out_dir, as_json=as_json)
