"""Every command explains itself with an example, and tells misuse from failure."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plexsvc.cli.app import live
from plexsvc.cli.commands.pack import _shape
from plexsvc.cli.main import _print_card, app
from plexsvc.cluster.places import (
    Card,
    find_cluster,
    job_dir,
    make_state_dir,
    read_card,
    write_card,
)
from plexsvc.errors import ErrorCode, PlexError

COMMANDS = [
    ["up"],
    ["down"],
    ["model"],
    ["model", "new"],
    ["submit"],
    ["status"],
    ["logs"],
    ["demo"],
    ["doctor"],
    ["replay"],
    ["explain"],
    ["job"],
    ["job", "list"],
    ["job", "cancel"],
    ["job", "move"],
    ["job", "pin"],
    ["job", "unpin"],
    ["node"],
    ["node", "list"],
    ["node", "cordon"],
    ["node", "drain"],
    ["node", "uncordon"],
    ["node", "add"],
    ["pack"],
    ["plan"],
    ["report"],
    ["tenant"],
    ["top"],
]
NOUNS = [["job"], ["model"], ["node"]]
run = CliRunner().invoke


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_help_ends_with_an_example(command: list[str]) -> None:
    result = run(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example: plexctl" in result.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in NOUNS], ids=" ".join)
def test_every_command_offers_json(command: list[str]) -> None:
    assert "--json" in run(app, [*command, "--help"]).stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from plexsvc.cli import main\n"
        "sys.argv = ['plexctl', 'submit', '--help']\n"
        "try: main.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'grpc', 'torch', 'numpy', 'sqlalchemy', 'google.protobuf'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SETTINGS = ["test", "exact", "a", "--settings", "[]"]


@pytest.mark.parametrize(
    "args", [["add", "own"], ["add", "own", "/no/such.py"], ["test", "exact"], SETTINGS], ids=str
)
def test_a_refusal_of_the_client_is_a_sentence_too(args: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "plexsvc.cli.main", "reward", *args]
    done = subprocess.run(
        [*command, "--state-dir", str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr[:13]) == (2, "bad_request: "), done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["job", "list"],
        ["job", "cancel", "j"],
        ["job", "move", "j"],
        ["explain", "00ff"],
        ["node", "list"],
        ["node", "drain", "n"],
        ["pack"],
        ["report"],
        ["tenant"],
        ["top"],
    ],
)
def test_without_a_cluster_a_command_fails_and_says_how_to_start_one(
    command: list[str], tmp_path: Path
) -> None:
    result = run(app, command, env={"PLEX_STATE_DIR": str(tmp_path)})
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "plexctl up" in result.stderr


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["explain", "op_zz"], "op_zz"),
        (["submit", "--env", "X", "x.py"], "KEY=VALUE"),
        (["submit", "no-such-script.py"], "no-such-script.py"),
        (["logs", "../../etc"], "job list"),
        (["frobnicate"], "frobnicate"),
        (["status", "--wotch"], "--wotch"),
        (["pack", "--apply", "--what-if", "x.json"], "one of --what-if"),
        (["pack", "--window", "-1"], "--window"),
        (["top", "--window", "1e30"], "--window"),
        (["explain", ""], "is empty"),
        (["pack", "--what-if", "no-such-job.json"], "no-such-job.json"),
        (["node", "drain"], "node"),
        (["up", "--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_misuse_exits_with_two_and_names_what_was_wrong(
    command: list[str], named: str, tmp_path: Path
) -> None:
    write_card(tmp_path, Card(address="127.0.0.1:1", token="t"))
    result = run(app, command, env={"PLEX_STATE_DIR": str(tmp_path)})
    assert result.exit_code == 2
    assert named in result.stderr


def test_with_json_an_error_is_a_line_of_json(tmp_path: Path) -> None:
    result = run(app, ["job", "list", "--json"], env={"PLEX_STATE_DIR": str(tmp_path)})
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "not_found"
    assert "plexctl up" in error["message"]


def test_nothing_to_stop_is_said(tmp_path: Path) -> None:
    result = run(app, ["down"], env={"PLEX_STATE_DIR": str(tmp_path)})
    assert (result.exit_code, result.stdout) == (0, f"no cluster runs in {tmp_path}\n")


def test_a_model_is_made_once(tmp_path: Path) -> None:
    made = run(app, ["model", "new", "tiny-qwen3", str(tmp_path / "m"), "--json"])
    assert json.loads(made.stdout)["directory"] == str(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "qwen3"
    again = run(app, ["model", "new", "tiny-qwen3", str(tmp_path / "m")])
    assert again.exit_code == 2
    assert "cannot write" in again.stderr


def test_logs_of_an_unknown_job_are_not_found(tmp_path: Path) -> None:
    result = run(app, ["logs", "job-0"], env={"PLEX_STATE_DIR": str(tmp_path)})
    assert result.exit_code == 1
    assert "where a job was submitted" in result.stderr


def test_a_card_is_for_its_owner_alone_and_reads_back(tmp_path: Path) -> None:
    card = Card(address="h:1", token="secret", pid=7)
    write_card(tmp_path, Card(address="old:1", token="x"))
    write_card(tmp_path, card)
    assert read_card(tmp_path) == card
    assert (tmp_path / "cluster.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"address": 1, "more": 2}'])
def test_a_broken_card_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(PlexError, match=r"cluster\.json is no cluster's card"):
        read_card(tmp_path)


def test_a_state_directory_is_private_whoever_made_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_state_dir(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_an_address_given_by_hand_wins_over_the_card(tmp_path: Path) -> None:
    write_card(tmp_path, Card(address="h:1", token="secret"))
    assert find_cluster(tmp_path, address=None, token=None).address == "h:1"
    assert find_cluster(tmp_path, address="other:2", token="t") == Card(
        address="other:2", token="t"
    )


def test_a_cards_token_is_sent_to_the_cards_address_alone(tmp_path: Path) -> None:
    write_card(tmp_path, Card(address="h:1", token="operator-secret"))
    assert find_cluster(tmp_path, address="h:1", token=None).token == "operator-secret"
    for token in (None, ""):
        with pytest.raises(PlexError, match="--token") as refused:
            find_cluster(tmp_path, address="evil.example:1", token=token)
        assert refused.value.code == "bad_request"
        assert "operator-secret" not in str(refused.value)


@pytest.mark.parametrize("job_id", ["", "..", "a/b"])
def test_a_job_directory_is_one_plain_name(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(PlexError) as caught:
        job_dir(tmp_path, job_id)
    assert caught.value.code is ErrorCode.BAD_REQUEST


def test_what_is_kept_on_a_screen_is_printed_once_where_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    live((f"view {number}" for number in count()), every_s=0.01)
    assert capsys.readouterr().out == "view 0\n"


def test_a_what_if_of_any_job_that_is_one_goes_into_a_message(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    segment = {"phase": "train", "offset_s": 0, "duration_s": 1}
    largest = {"job_id": "a", "nodes": 10**6, "cycles": 10**6, "period_s": 1e9, "state_gb": 1e9}
    path.write_text(json.dumps({**largest, "segments": [segment], "max_slowdown": 1e9}))
    assert _shape(path).num_devices == 10**6


def test_up_tells_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = Card(address="h:1", token="secret", http="h:2")
    _print_card(card, state_dir=tmp_path, json=False)
    assert f"http://h:2/, with the token in {tmp_path}/cluster.json" in capsys.readouterr().out
    _print_card(replace(card, ca="ca.pem"), state_dir=tmp_path, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["page"] == "https://h:2/"
    assert "secret" not in str(told)
    _print_card(replace(card, http=""), state_dir=tmp_path, json=False)
    assert "page to look" not in capsys.readouterr().out
