"""What is a secret: names with the reason for each, the forms of tokens, and that none is ever written down.

The tokens here are made up, and put together at run time, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD, FIELDS
from clusterrun.jobspec.fields import Value, check_value
from clusterrun.jobspec.secrets import SECRET_NAMES, SECRET_PATTERNS, named_secret, secret_shape
from tests.support.command_desk import Desk, refused

ALPHABET = string.ascii_letters + string.digits
BODY = (ALPHABET * 3)[7:]
HEX = "0123456789abcdef" * 3

SECRET = {
    "HF_TOKEN": "a token", "HF_TOKEN_READ": "a token", "HUGGING_FACE_HUB_TOKEN": "a token", "HFTOKEN": "a token",
    "GITHUB_TOKEN": "a token", "CI_JOB_TOKEN": "a token", "AWS_SESSION_TOKEN": "a token",
    "MLFLOW_TRACKING_TOKEN": "a token", "NEPTUNE_API_TOKEN": "a token", "hf_token": "a token", "TOKEN": "a token",
    "KAGGLE_KEY": "a key", "OPENAI_KEY": "a key", "AZURE_STORAGE_KEY": "a key", "SSH_PRIVATE_KEY": "a key",
    "OPENAI_KEY_2": "a key", "AWS_ACCESS_KEY": "a key",
    "WANDB_API_KEY": "an API key", "OPENAI_API_KEY_PROD": "an API key", "COMET_APIKEY": "an API key",
    "NGC_CLI_API_KEY": "an API key",
    "PGPASSWORD": "a password", "RSYNC_PASSWORD": "a password", "DB_PASS": "a password", "MYSQL_PWD": "a password",
    "SSHPASS": "a password", "GPG_PASSPHRASE": "a password", "REDIS_PASSWD": "a password",
    "AWS_SECRET_ACCESS_KEY": "a secret", "CLIENT_SECRET": "a secret", "DJANGO_SECRETKEY": "a secret",
    "CLEARML_API_SECRET_KEY": "a secret",
    "GITHUB_PAT": "a personal access token", "HF_PAT_WRITE": "a personal access token",
    "GCP_CREDENTIALS": "credentials", "GIT_CREDS": "credentials",
    "SESSION_COOKIE": "a credential", "DOCKER_AUTH_CONFIG": "a credential", "SLACK_WEBHOOK_URL": "a credential",
    "AZURE_STORAGE_CONNECTION_STRING": "a credential",
}  # fmt: skip
INNOCENT = {
    "EOS_TOKEN": "a vocabulary token", "PAD_TOKEN": "a vocabulary token",
    "ADD_BOS_TOKEN": "a vocabulary token", "MASK_TOKEN_ID": "a vocabulary token",
    "LOSS_PER_TOKEN": "a vocabulary token",
    "TOKEN_TYPE_IDS": "a number of tokens or a token id", "TOKEN_BUDGET": "a number of tokens or a token id",
    "GOOGLE_APPLICATION_CREDENTIALS": "the path of a key file", "SSH_AUTH_SOCK": "the path of a file",
    "HF_TOKEN_PATH": "the path of a file", "PGPASSFILE": "the path of a file", "DB_PASSWORD_FILE": "the path of a file",
    "SORT_KEY": "the name of a column or a key of a table",
    "TEXT_KEY": "the name of a column or a key of a table",
    "PUBLIC_KEY": "the name of a column or a key of a table",
    "AWS_ACCESS_KEY_ID": "an id, which is not a secret", "PWD": "the current folder",
    "OLDPWD": "the current folder", "FORWARD_PASS": "a pass through a model or over the data",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "a switch",
    # no row is about these
    "MAX_TOKENS": "", "TOKENIZERS_PARALLELISM": "", "TOKENIZER": "", "TOKENS_PER_STEP": "", "KEY_FRAME": "",
    "MONKEY": "", "MONKEY_PATCH": "", "HOTKEYS": "", "NCCL_IB_PKEY": "", "COMPASS": "", "BYPASS": "", "PATH": "",
    "PATIENCE": "", "SECRETARY": "", "CREDIT": "", "AUTHOR": "", "PASSES": "", "KEYS": "",
}  # fmt: skip


def tokens() -> dict[str, list[str]]:
    """For each form some tokens of it."""
    return {
        "a Hugging Face token": ["hf_" + BODY[:34], "api_org_" + BODY[:34]],
        "a GitHub token": ["ghp_" + BODY[:36], "gho_" + BODY[:36], "github_pat_" + BODY[:22] + "_" + BODY[:59]],
        "a GitLab token": ["glpat-" + BODY[:20]],
        "an API key (sk-…)": ["sk-" + BODY[:48], "sk-proj-" + BODY[:60], "sk-ant-api03-" + BODY[:60]],
        "an AWS access key id": ["AKIA" + "Q7" * 8, "ASIA" + "Q7" * 8],
        "a Google API key": ["AIza" + BODY[:35]],
        "a Slack token": ["xoxb-" + "1" * 12 + "-" + BODY[:24], "https://hooks.slack.com/services/" + "T0/B0/" + BODY],
        "a W&B API key": ["WANDB_API_KEY=" + HEX[:40], "wandb login " + HEX[:40], "wandb_v1_" + BODY[:77]],
        "a Kaggle token": ["KGAT_" + HEX[:32]],
        "an NVIDIA API key": ["nvapi-" + BODY[:64]],
        "a Neptune API token": ["eyJhcGlf" + BODY[:60]],
        "a JSON web token": ["eyJ" + BODY[:20] + ".eyJ" + BODY[:20] + "." + BODY[:20]],
        "a private key": ["-----BEGIN " + "PRIVATE KEY-----", "-----BEGIN OPENSSH " + "PRIVATE KEY-----"],
        "a URL with a password": ["postgres://me:" + "pw@db/x", "https://:" + "pw@host", "redis://" + "u:p@h:1/0"],
    }


TOKENS = [(what, token) for what, several in tokens().items() for token in several]


@pytest.mark.parametrize(("name", "reason"), SECRET.items())
def test_a_variable_of_this_name_is_refused(name: str, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_value(FIELD["env"], Value({name: "correct-horse"}, "clusterrun.toml"))
    assert caught.value.message == (
        f"--env: {name} looks like {reason} (clusterrun.toml); the batch script and the run's records would"
        " contain its value"
    )
    assert caught.value.hint.startswith(f"export {name} in your shell and add --secret {name}; clusterrun passes it on")


@pytest.mark.parametrize(("name", "reason"), INNOCENT.items())
def test_a_variable_of_this_name_passes(name: str, reason: str) -> None:
    assert named_secret(name, "correct-horse") == ""
    matching = [reason for pattern, _, reason, _ in SECRET_NAMES if re.fullmatch(pattern, name)]
    assert (matching or [""])[0] == reason


@pytest.mark.parametrize("value", ["", "0", "1", "true", "False", "off", "None"])
def test_a_switch_is_no_secret_whatever_it_is_called(value: str) -> None:
    assert named_secret("USE_AUTH_TOKEN", value) == ""


def test_each_row_of_the_tables_is_shown_by_a_case() -> None:
    first = {
        next((row for row in SECRET_NAMES if re.fullmatch(row[0], name.upper())), None) for name in SECRET | INNOCENT
    }
    assert set(SECRET_NAMES) <= first
    assert set(tokens()) == {what for what, _, _ in SECRET_PATTERNS}
    assert all(map(all, [(reason, source) for _, _, reason, source in SECRET_NAMES])) and all(map(all, SECRET_PATTERNS))


@pytest.mark.parametrize(("what", "token"), TOKENS)
def test_a_token_is_known_by_its_form(what: str, token: str) -> None:
    for text in (token, f"--key={token}", f'"{token}"', f"a {token} b", f"https://x/?k={token}"):
        assert secret_shape(text), text
    assert secret_shape(token) == what


@pytest.mark.parametrize(
    "text",
    [
        "3f786850e387550fdab836ed7e6dc881de23001b", "WANDB_GIT_COMMIT=3f786850e387550fdab836ed7e6dc881de23001b",
        "sk-learn-gradient-boosting-classifier-v2", "task-0123456789abcdef0123456789", "risk-" + BODY[:40],
        "hf_transformers_cache_of_a_long_name_indeed", "hf:org/name", "ghp_short", "s3://bucket/key:1@x",
        "git@github.com:me/repo.git", "ssh://git@host:22/repo", "http://proxy:3128", "tcp://10.0.0.1:29500",
        "https://$USER:$TOKEN@host/x", "https://user:${TOKEN}@host", "afterok:123@5", "a@b.c", "me:x@y",
        "eyJhbGciOi", "AKIAB", "MAKIAQ7Q7Q7Q7Q7Q7Q7Q7Q", "xoxb", "BEGIN PUBLIC KEY", "HuggingFaceTB/SmolLM2-135M",
        "docker://nvcr.io/nvidia/pytorch:25.01-py3", "wandb-0123456789abcdef0123456789abcdef01234567",
    ],
)  # fmt: skip
def test_a_text_that_is_no_token(text: str) -> None:
    assert secret_shape(text) == ""


@pytest.mark.parametrize(
    "line",
    [
        "export HF_TOKEN=abc", "HF_TOKEN=abc", "export HF_TOKEN='a b'", 'export HF_TOKEN="abc$X"',
        "A=1 HF_TOKEN=abc cmd",
        "true; export HF_TOKEN=abc", "declare -x HF_TOKEN=abc", "env HF_TOKEN=abc python x", "export HF_TOKEN=$'abc'",
        "bash -c 'export HF_TOKEN=abc'", "export HF_TOKEN='$abc'", "(HF_TOKEN=abc)", "export HF_TOKEN=~/.token",
    ],
)  # fmt: skip
def test_a_setup_line_that_writes_a_secret_out(line: str, desk: Desk) -> None:
    said, hint = refused(desk, "render", "--setup", "true", "--setup", line)
    assert said.startswith("--setup: line 2: HF_TOKEN looks like a token") and "export HF_TOKEN in your shell" in hint


@pytest.mark.parametrize(
    "line",
    [
        "export HF_TOKEN=$(cat ~/.token)", 'export HF_TOKEN="$(cat "$HOME/.token")"', "export HF_TOKEN=`cat ~/.token`",
        "source ~/.secrets", ". ~/.secrets", "export HF_TOKEN", "export HF_TOKEN=$MY", 'HF_TOKEN="${MY}" true',
        "unset HF_TOKEN", "export HF_TOKEN=", "export HF_TOKEN=${HF_TOKEN:?}", "module load cuda/12.4",
        "[ -n $HF_TOKEN ]",
        "export GOOGLE_APPLICATION_CREDENTIALS=$HOME/key.json", "export TOKENIZERS_PARALLELISM=false",
        "wandb login --relogin $WANDB_API_KEY", "tool --token-file=x --api-key=$K", "export MAX_TOKENS=5",
    ],
)  # fmt: skip
def test_a_setup_line_that_reads_a_secret_passes(line: str, desk: Desk) -> None:
    said = desk.type("render", "--setup", line)
    assert said.status == 0 and line in said.out


def test_an_argument_of_the_script_is_judged_by_its_form(desk: Desk) -> None:
    token = tokens()["an API key (sk-…)"][0]
    line, hint = refused(desk, "submit", "--", "train.py", "--api-key", token)
    assert (
        line.startswith("the script's arguments: found what looks like an API key (sk-…);") and token not in line + hint
    )
    assert "export it as a variable in your shell before you submit, and read that variable in the job" in hint
    line, _ = refused(desk, "submit", "--", "train.py", "--wandb-key", HEX[:40])
    assert "a W&B API key" in line
    assert desk.type("render", "--", "train.py", "--api-key", "$OPENAI_API_KEY", "--eos_token", "x").status == 0


FLAGS = [field.name for field in FIELDS if field.kind in ("text", "list", "map") and field.name != "scheduler"]


@pytest.mark.parametrize("flag", FLAGS)
def test_no_option_takes_a_token(flag: str, desk: Desk) -> None:
    for what, token in TOKENS:
        value = {"env": {"A": token}, "set": {"data": ["x", token]}}.get(flag, token)
        with pytest.raises(RequestError) as caught:
            check_value(FIELD[flag], Value([token] if FIELD[flag].kind == "list" else value, "x"))
        assert what in caught.value.message and token not in caught.value.message + caught.value.hint
    words = {"env": f"A={token}", "set": f"data={token}"}
    refused(desk, "submit", f"--{flag}", words.get(flag, token), calls=True)


@pytest.mark.parametrize(("what", "token"), TOKENS)
def test_no_file_brings_a_token_in(what: str, token: str, desk: Desk) -> None:
    for text in (
        f"comment = {json.dumps(token)}",
        f"sbatch-arg = [{json.dumps('--mcs-label=' + token)}]",
        f"env.A = {json.dumps(token)}",
        f"setup = [{json.dumps('echo ' + token)}]",
    ):
        desk.write("clusterrun.toml", text)
        assert "looks like" in refused(desk, "submit")[0]
    (desk.project / "clusterrun.toml").unlink()
    for text in (
        f"script = 'train.py'\nargs = ['--x', {json.dumps(token)}]",
        f"task = 'lm'\n[set]\ndata = [{json.dumps(token)}]",
        f"task = 'lm'\n[set]\nmodel = {json.dumps(token)}",
    ):
        desk.write("jobs/mine.toml", text)
        assert "looks like" in refused(desk, "submit", "mine")[0]


def test_no_template_brings_a_token_in(desk: Desk) -> None:
    import clusterrun

    shipped = (Path(clusterrun.__file__).parent / "templates" / "sbatch.j2").read_text()
    python = desk.write("python", "#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    for what, token in TOKENS:
        desk.write("my.j2", f"{shipped}\n# {token}\n")
        line, _ = refused(desk, "submit", "--template", "my.j2", "--python", str(python), "--", "train.py", calls=True)
        assert f"the rendered script: found what looks like {what}" in line and "my.j2" in line and token not in line


@given(st.sampled_from(TOKENS), st.text(max_size=8), st.text(max_size=8))
def test_a_token_is_found_wherever_it_stands_between_blanks(case: tuple[str, str], before: str, after: str) -> None:
    assert secret_shape(f"{before} {case[1]} {after}")
