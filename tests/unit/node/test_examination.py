"""An agent tells models apart by their configuration and sizes, and says what it cannot read."""

from __future__ import annotations

from pathlib import Path

from plexsvc.clock import SystemClock
from plexsvc.node.config import AgentConfig, DeviceConfig
from plexsvc.node.examination import examine, examine_root


def model(directory: Path, *, config: str = "{}", weights: int = 4) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(config)
    (directory / "model.safetensors").write_bytes(bytes(weights))
    return directory


def test_models_of_one_content_have_one_stamp(tmp_path: Path) -> None:
    for root in ("one", "two"):
        model(tmp_path / root / "lab" / "same")
        (tmp_path / root / "no-model").mkdir()
    model(tmp_path / "one" / "longer")
    model(tmp_path / "two" / "longer", weights=5)
    model(tmp_path / "one" / "other")
    model(tmp_path / "two" / "other", config='{"a": 1}')
    one, two = (examine_root(tmp_path / root).models for root in ("one", "two"))
    assert set(one) == {"lab/same", "longer", "other"}
    assert {name for name in one if one[name] == two[name]} == {"lab/same"}


def test_a_root_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert examine_root(tmp_path / "gone").problem == "No such file or directory"
    model(tmp_path / "bad" / "m")
    (tmp_path / "bad" / "m" / "config.json").unlink()
    (tmp_path / "bad" / "m" / "config.json").symlink_to("nothing")
    assert examine_root(tmp_path / "bad").problem == "No such file or directory"


def test_a_host_says_its_versions_its_time_and_its_disks(tmp_path: Path) -> None:
    config = AgentConfig(
        node_id="n",
        devices=(DeviceConfig(kind="train", bytes_total=1),),
        runtime_dir=tmp_path,
        disk_bytes=1,
        disk_dir=Path("/"),
        keys_file=tmp_path / "keys.json",
    )
    found = examine(config, clock=SystemClock(), roots=[str(tmp_path)], unreached=["10.0.0.9:1"])
    assert found.versions["plexsvc"]
    assert set(found.free_bytes) == {str(tmp_path), "/"}
    assert list(found.unreached) == ["10.0.0.9:1"]
    assert [root.path for root in found.roots] == [str(tmp_path)]
    assert found.wall_us > 0
