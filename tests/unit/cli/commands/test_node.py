"""Commands of nodes: the Slurm template joins each host with a token of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).parents[4] / "deploy" / "slurm" / "nodes.sbatch"


def stub(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("host", "pool"), [(0, ""), (1, "pool.toml")])
def test_each_host_of_a_slurm_job_joins_with_a_line_of_the_file_in_its_environment(
    tmp_path: Path, host: int, pool: str
) -> None:
    stub(tmp_path / "srun", f'SLURM_PROCID={host} exec "$@"')
    stub(tmp_path / "hostname", "echo host-9")
    plexctl = stub(tmp_path / "plexctl", 'echo "$PLEX_TOKEN" "$@"')
    (tmp_path / "tokens").write_text("tok-a\ntok-b\n")
    done = subprocess.run(
        ["bash", str(TEMPLATE), "10.0.0.1:50051", str(tmp_path / "tokens")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "POOL": pool}
        | {"PLEXCTL": str(plexctl), "DIRECTORY": "/d"},
        capture_output=True,
        text=True,
        check=True,
    )
    token = ("tok-a", "tok-b")[host]
    told = f"{token} node join 10.0.0.1:50051 --name host-9-7 --directory /d"
    assert done.stdout.strip() == told + (f" --pool {pool}" if pool else "")
