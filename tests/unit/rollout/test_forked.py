"""What the rollout zygote forks refuses a model before it imports an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from plexsvc.errors import ErrorCode, PlexError
from plexsvc.rollout import forked
from plexsvc.weights import checkpoints


def test_a_model_that_is_not_what_was_saved_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    checkpoints.seal(tmp_path, {})
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    config = {
        "wpg_id": "w",
        "rank": 0,
        "incarnation": 1,
        "scheduler_epoch": 1,
        "tenant": "t",
        "job_id": "j",
        "deployment_id": "d",
        "model": str(tmp_path),
    }
    with pytest.raises(PlexError, match="another checksum") as refused:
        forked.main(config, ready=print)
    assert refused.value.code is ErrorCode.CHECKPOINT_DAMAGED
