"""``--remote``: what runs there, what is sent, and what a lost connection leads to."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from clusterrun.cli import main
from clusterrun.remote.run import Session
from clusterrun.remote.setup import make_wheel
from clusterrun.remote.ssh import default_folder
from tests.unit.remote.conftest import Cluster


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "__init__", _patient(Session.__init__))


def _patient(init):
    return lambda self, *args, **kwargs: init(self, *args, **kwargs, sleep=lambda seconds: None)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(words)
    return int(stop.value.code or 0)


def folder(cluster: Cluster) -> Path:
    return cluster.home / default_folder(Path.cwd())


@pytest.mark.parametrize(
    "words", [["--remote", "h", "list", "-a"], ["list", "--remote", "h", "-a"], ["list", "-a", "--remote=h"]]
)
def test_a_command_runs_there_in_the_projects_folder(cluster: Cluster, words: list[str]) -> None:
    cluster.answer("exit 4")
    assert run(*words) == 4
    assert cluster.ran() == [f"{folder(cluster)}: list -a"]


GREETING = """Loading modules: gcc/12 cuda/12.4
Disk quota: 812 of 1000 GB used, job 12345678 of yours is running
\033[1mWelcome to the Supercomputer 3\033[0m
7
{"version": 1, "command": "list", "data": [], "error": null}
stty: standard input: Inappropriate ioctl for device"""


@pytest.mark.parametrize("size", [1, 1000])
def test_what_a_login_shell_prints_is_no_answer(cluster: Cluster, capfd: pytest.CaptureFixture[str], size: int) -> None:
    (cluster.folder / "greeting").write_text(GREETING * size)
    Path("train.py").write_text("pass\n")
    cluster.answer('echo \'{"data": {"job_id": "5"}}\'')
    for words in (["list", "--json"], ["submit", "--json", "--", "train.py"], ["cancel", "--json", "5"]):
        assert run("--remote", "h", *words) == 0
        said = capfd.readouterr()
        assert json.loads(said.out)["data"] == {"job_id": "5"} and said.err == "", words
    assert (folder(cluster) / "train.py").read_text() == "pass\n", "rsync reads past it too"
    agree(cluster, "h")
    assert "is already installed on h" in capfd.readouterr().out


def test_a_login_shell_that_runs_no_command_is_shown(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    ssh = cluster.folder / "ssh"
    ssh.write_text(ssh.read_text().replace("cd / &&", "echo This account is not available.; exit 1; cd / &&"))
    assert run("--remote", "h", "list") == 1
    assert "This account is not available." in capfd.readouterr().err


def test_words_arrive_as_they_were_typed(cluster: Cluster) -> None:
    cluster.answer("printf '<%s>\\n' \"$@\"")
    run("--remote", "h", "exec", "5", "--", "echo", "a  b", "$HOME", "'", "--remote", "x")
    assert cluster.ran()[0].endswith(": exec 5 -- echo a  b $HOME ' --remote x")


PROFILES = 'remote = "h"\nremote-dir = "~/p/vision"\n[profile.x]\nremote = "other"\n'


def agree(cluster: Cluster, *words: str) -> None:
    """Type `remote setup` for a host where this version is installed."""
    mark = hashlib.sha256(make_wheel()[1]).hexdigest()
    (cluster.home / ".local/share/clusterrun/wheel.sha256").write_text(mark)
    assert run("remote", "setup", *words) == 0


def test_the_profile_names_the_host_and_the_folder(cluster: Cluster) -> None:
    Path("clusterrun.toml").write_text(PROFILES)
    agree(cluster, "h")
    agree(cluster, "other", "--profile", "x")
    Path("sub").mkdir()
    assert run("list") == 0 and run("render", "--profile", "x") == 0
    assert [line.partition(": ")[0] for line in cluster.ran()] == [str(cluster.home / "p/vision")] * 2
    assert " -- h " in cluster.calls and " -- other " in cluster.calls


def test_a_projects_file_reaches_no_host_and_folder_before_the_user_agrees(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("clusterrun.toml").write_text(PROFILES)
    refused = [["list"], ["submit", "--", "x.py"], ["--remote", "h", "list"], ["render", "--profile", "x"]]
    for words in refused:  # also with a typed host: the folder is the file's
        assert run(*words) == 2 and cluster.calls == ""
    assert "hint: to agree, run in this project: clusterrun remote setup other --profile x" in capfd.readouterr().err
    Path("clusterrun.toml").write_text('remote = "h; touch x"\n')
    assert run("list") == 2 and "clusterrun remote setup 'h; touch x'\n" in capfd.readouterr().err
    Path("clusterrun.toml").write_text(PROFILES)
    agree(cluster, "h")
    assert "is sent to h, in p/vision there" in capfd.readouterr().out
    agree(cluster, "h", "--json")
    agreed = {"project": str(Path.cwd()), "folder": "p/vision"}
    assert json.loads(capfd.readouterr().out)["data"]["agreed"] == agreed
    assert run("list") == 0 and run("--remote", "h", "list") == 0
    for changed in (
        'remote = "h"\nremote-dir = "bin"\n',
        'remote = "h"\n',
        'remote = "other"\nremote-dir = "~/p/vision"\n',
    ):
        Path("clusterrun.toml").write_text(changed)
        assert run("list") == 2, changed
    Path("clusterrun.toml").write_text('remote = "h"\n')
    assert run("--remote", "h", "list") == 0, "the user typed it, and the folder is clusterrun's own"


def test_the_users_own_profile_needs_no_agreement(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / ".config/clusterrun").mkdir(parents=True)
    (tmp_path / ".config/clusterrun/config.toml").write_text('remote = "h"\nremote-dir = "p"\n')
    assert run("list") == 0 and cluster.ran() == [f"{cluster.home / 'p'}: list"]


def test_an_agents_command_goes_to_no_host(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("clusterrun.toml").write_text('remote = "h"\n')
    agree(cluster, "h")
    before = cluster.calls
    monkeypatch.setenv("CLUSTERRUN_AGENT", "1")
    assert run("render", "--gpus-per-node", "0", "--tasks-per-node", "1") == 0
    assert run("--remote", "h", "list") == 2 and "without --remote" in capfd.readouterr().err
    assert cluster.calls == before and cluster.ran() == []


def test_an_empty_host_means_this_machine(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    Path("clusterrun.toml").write_text('remote = "h"\n')
    assert run("--remote", "", "render", "--gpus-per-node", "0", "--tasks-per-node", "1") == 0
    assert "#SBATCH" in capfd.readouterr().out and cluster.ran() == []


def test_a_command_there_does_not_go_on_to_another_host(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("clusterrun.toml").write_text('remote = "h"\n')
    monkeypatch.setenv("CLUSTERRUN_REMOTE", "end")
    assert run("render", "--gpus-per-node", "0", "--tasks-per-node", "1") == 0
    assert cluster.ran() == []


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a;b", "a:b", "$(x)"])
def test_a_host_is_a_name(cluster: Cluster, host: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(f"--remote={host}", "list") == 2
    assert "is not a host name" in capfd.readouterr().err
    assert not (cluster.folder / "calls").exists()


def test_a_host_is_needed(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--remote") == 2 and run("submit", "--remote", "--", "x") == 2
    assert capfd.readouterr().err.count("clusterrun: --remote needs a host\n  hint: ") == 2


def test_an_unsafe_folder_is_refused(cluster: Cluster) -> None:
    Path("clusterrun.toml").write_text('remote = "h"\nremote-dir = "~/a; touch b"\n')
    assert run("list") == 2


def test_a_host_that_is_down(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    (cluster.folder / "down").touch()
    assert run("list", "--json", "--remote", "h") == 3
    assert json.loads(capfd.readouterr().out)["error"]["message"] == "cannot connect to h"


def test_a_host_without_clusterrun(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    next(cluster.home.rglob("clusterrun/bin/clusterrun")).unlink()
    assert run("list", "--remote", "h") in (0, 3)  # 0 if this machine has one in PATH
    del capfd


@pytest.mark.parametrize(("words", "status"), [(["list"], 3), (["cancel", "5"], 75), (["clean"], 75)])
def test_a_lost_connection(cluster: Cluster, words: list[str], status: int, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.lose(1)
    assert run("--remote", "h", *words) == status
    assert ("may have taken effect" in capfd.readouterr().err) == (status == 75)


def test_wait_waits_on(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.lose(2)
    cluster.answer("exit 1")
    assert run("--remote", "h", "wait", "5") == 1
    assert capfd.readouterr().err.count("connection to h lost; reconnecting") == 2


def submit(*more: str) -> int:
    return run("--remote", "h", "submit", *more, "--", "train.py")


def test_a_submission_has_an_identity_and_secrets_that_no_command_line_shows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "s3cret")
    monkeypatch.setenv("B_TOKEN", "s4cret")
    Path("clusterrun.toml").write_text('secret = ["B_TOKEN", "NOT_SET"]\n')
    assert submit("--secret", "A_TOKEN") == 0
    sent = json.loads(cluster.sent)
    assert sent["environ"]["A_TOKEN"] == "s3cret" and sent["environ"]["B_TOKEN"] == "s4cret"
    assert "NOT_SET" not in sent["environ"] and re.fullmatch(r"\d+-[a-z2-7]{16}", sent["submission"])
    assert "s3cret" not in cluster.calls and "s4cret" not in cluster.calls + "".join(cluster.ran())


@pytest.mark.parametrize("words", [["resume", "5"], ["resubmit", "5"], ["submit", "--recover", "5"]])
def test_a_secret_is_sent_again_for_a_run_that_has_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("A_TOKEN", "s3cret")
    assert run("--remote", "h", *words, "--secret", "A_TOKEN") == 0
    assert json.loads(cluster.sent)["environ"]["A_TOKEN"] == "s3cret"
    assert cluster.ran()[0].endswith(f": {' '.join(words)} --secret A_TOKEN") and "s3cret" not in cluster.calls


def test_a_submission_whose_connection_is_lost_is_looked_up_not_sent_again(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.lose(1)
    cluster.answer("echo Submitted job 7")
    assert submit() == 0
    (again,) = cluster.ran()
    assert re.search(r": submit --recover \d{8}-\d{6}-[a-z2-7]{6}$", again)
    assert capfd.readouterr().out == "Submitted job 7\n"


def test_a_submission_that_no_record_shows_is_unknown(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.lose(1)
    cluster.answer("echo 'clusterrun: no record of run' >&2; exit 4")
    assert submit() == 75
    said = capfd.readouterr().err
    assert "was not found there" in said and "| clusterrun: no record of run" in said
    assert "hint: before you submit again, run `clusterrun --remote h list --all`" in said
    assert all("--recover" in line for line in cluster.ran())


def test_followed_after_it_is_submitted(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    frame = '{"n": 3, "file": ":out", "at": 3, "mark": "", "ended": false}'
    cluster.answer(f"[ $1 = logs ] || exit 0; printf 'welcome\\nclusterrun frames 1\\n\"7\"\\n{frame}\\nhi\\n'; exit 1")
    assert submit("--follow") == 1
    first, second = cluster.ran()
    assert first.endswith(": submit -- train.py") and re.search(r": logs \S+ -f$", second)
    assert capfd.readouterr().out == "hi\n"


def test_a_clusterrun_there_that_knows_no_frames(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.answer("echo 0: a line")
    assert run("--remote", "h", "logs", "5", "-f") == 3
    assert "hint: clusterrun remote setup h" in capfd.readouterr().err


def test_a_host_that_closes_each_connection_is_given_up(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.lose(1000)
    assert run("--remote", "h", "logs", "5", "-f") == 3
    assert "closes each connection" in capfd.readouterr().err


def test_a_report_is_not_written_into_a_folder_of_the_other_host(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--remote", "h", "report", "5") == 2
    assert "clusterrun --remote h report 5 -o - >report.html" in capsys.readouterr().err
    assert run("--remote", "h", "report", "5", "-o", "-") == 0


def test_init_prints(cluster: Cluster) -> None:
    assert run("--remote", "h", "init") == 2 and run("--remote", "h", "init", "--print") == 0
    assert len(cluster.ran()) == 1


def test_last_means_the_same_job_after_a_lost_connection(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    first = '{"n": 3, "file": ":out", "at": 3, "mark": "", "ended": false}'
    begin = "printf 'clusterrun frames 1\\n\"run-7\"\\n'"
    cluster.answer(f"{begin}; [ -e $here/second ] || {{ touch $here/second; printf '{first}\\nhi\\n'; exit 255; }}")
    assert run("--remote", "h", "logs", "-f") == 0
    one, two = (json.loads(part) for part in cluster.sent.replace("}{", "}\n{").splitlines())
    assert (one["job"], one["places"]) == ("", {})
    assert (two["job"], two["places"]) == ("run-7", {":out": {"at": 3, "mark": "", "ended": False}})
    assert capfd.readouterr().out == "hi\n"
