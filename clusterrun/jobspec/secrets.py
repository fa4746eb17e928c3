"""Which variables and which texts are secrets: two tables, so that none is written into a script or a record. No I/O.

Slurm keeps the batch script (``scontrol write batch_script``), and a site or ``--shared`` may let others read it.
A name is judged by the first row of ``NAMES`` that matches it; a text by any row of ``SHAPES``.
"""

# ruff: noqa: E501 (tables: a pattern stays in one piece)

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clusterrun.errors import RequestError


@dataclass(frozen=True, slots=True)
class Name:
    """A pattern of whole variable names in capitals, whether the value is a secret, why, and where that was read."""

    pattern: str
    secret: bool
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What a token or key is called, a pattern that finds it in a text, and where its form was read."""

    what: str
    pattern: str
    source: str


_ROLE = r"(?:_(?:READ|WRITE|RO|RW|PROD|DEV|TEST|MAIN|OLD|NEW|[0-9]+))?"

NAMES: tuple[Name, ...] = (
    Name(r"HF_HUB_DISABLE_IMPLICIT_TOKEN", False, "a switch", "huggingface_hub, environment variables"),
    Name(r"GOOGLE_APPLICATION_CREDENTIALS", False, "the path of a key file", "Google Cloud, Application Default Credentials"),
    Name(r".*_(?:PATH|FILE|DIR|SOCK)|PGPASSFILE", False, "the path of a file", "PostgreSQL 17, 34.15; ssh-agent(1); AWS CLI, environment variables"),
    Name(r"(?:OLD)?PWD", False, "the current folder", "POSIX.1-2017, cd"),
    Name(r"(?:.*_)?KEY_ID", False, "an id, which is no secret by itself", "AWS, IAM access keys"),
    Name(
        r"(?:.*_)?(?:EOS|BOS|PAD|SEP|CLS|MASK|UNK|EOT|SOT|SPECIAL|STOP|START|END|BEGIN|FIRST|LAST|NEXT|NEW|PER|IMAGE|IMG|AUDIO|VIDEO|TEXT|MAX|MIN|NUM|REGISTER|PATCH)_TOKEN(?:_.*)?",
        False, "a token of a vocabulary", "transformers, PreTrainedTokenizer",
    ),
    Name(r"(?:.*_)?TOKEN_(?:IDS?|INDEX|COUNT|DIM|LEN|LENGTH|LIMIT|BUDGET|TYPE|DROPOUT|MIXER|MERGING)(?:_.*)?", False, "a figure about tokens", "transformers, configuration"),
    Name(r"(?:.*_)?(?:PUBLIC|PRIMARY|FOREIGN|SORT|CACHE|PARTITION|TEXT|IMAGE|LABEL|PROMPT|TARGET|INPUT|OUTPUT|DATA|DATASET|COLUMN|FEATURE|METRIC|MONITOR|STATE|GROUP|SAMPLE|QUERY|RNG)_KEY", False, "the key of a column, a table or a pair", "datasets, PyTorch Lightning"),
    Name(r"(?:.*_)?(?:FORWARD|BACKWARD|SINGLE|ONE|TWO|FIRST|SECOND|N|NUM)_PASS", False, "a pass over the data", "common in training scripts"),
    Name(r".*(?:PASSWORD|PASSWD|PASSPHRASE|SSHPASS).*", True, "a password", "PostgreSQL 17, 34.15 (PGPASSWORD); sshpass(1)"),
    Name(rf".+_(?:PASS|PWD){_ROLE}", True, "a password", "MySQL 8.4, 6.9 (MYSQL_PWD)"),
    Name(r".*SECRETS?(?:_.*)?|.*SECRETKEY", True, "a secret", "AWS CLI, environment variables (AWS_SECRET_ACCESS_KEY)"),
    Name(r"(?:.*_)?CRED(?:ENTIAL)?S?(?:_.*)?", True, "credentials", "common in deployment scripts"),
    Name(r".*API_?KEYS?(?:_.*)?", True, "an API key", "W&B, environment variables (WANDB_API_KEY)"),
    Name(rf"(?:.*_)?KEY{_ROLE}", True, "a key", "Kaggle API (KAGGLE_KEY)"),
    Name(r".*TOKEN(?:_.*)?", True, "a token", "huggingface_hub, environment variables (HF_TOKEN)"),
    Name(rf".+_PAT{_ROLE}", True, "a personal access token", "GitHub, managing personal access tokens"),
    Name(r"(?:.*_)?(?:BEARER|JWT|COOKIE|BASIC_AUTH|AUTH_CONFIG|CONNECTION_STRING|WEBHOOK(?:_URL)?)", True, "a login", "GitLab CI (DOCKER_AUTH_CONFIG); Azure Storage, connection strings"),
)  # fmt: skip

SHAPES: tuple[Shape, ...] = (
    Shape("a Hugging Face token", r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}", "huggingface_hub, security tokens; gitleaks"),
    Shape("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{36,})", "GitHub, token formats"),
    Shape("a GitLab token", r"\bgl(?:pat|dt|rt|oas|ptt|soat|agent|cbt|ft)-[\w-]{20,}", "GitLab, token overview"),
    # a name such as sk-learn-gradient-boosting-v2 has no run of 16 letters and digits
    Shape("an API key (sk-…)", r"(?<![\w-])sk-(?=[\w-]*[A-Za-z0-9]{16})(?=[\w-]*[0-9])[\w-]{20,}", "OpenAI and Anthropic, API keys; gitleaks"),
    Shape("an AWS access key id", r"(?<![A-Z0-9])A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Z0-9])", "AWS, IAM identifiers"),
    Shape("a Google API key", r"\bAIza[\w-]{35}", "gitleaks"),
    Shape("a Slack token", r"\bxox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/T\w+/B\w+/\w+", "Slack, token types; incoming webhooks"),
    # 40 hexadecimal digits alone may be a git commit
    Shape("a W&B API key", r"\bwandb_v1_\w{40,}|(?i:wandb[\w-]*key|wandb\s+login(?:\s+--?[\w-]+)*|api[_-]?key)[\"']?[\s=:]+[\"']?[0-9a-f]{40}\b", "W&B, API keys"),
    Shape("a Kaggle token", r"\bKGAT_[0-9a-f]{32}", "Kaggle, API tokens"),
    Shape("an NVIDIA API key", r"\bnvapi-[\w-]{40,}", "NVIDIA NGC, API keys"),
    Shape("a Neptune API token", r"\beyJhcGlf[A-Za-z0-9+/=]{30,}", "Neptune, API token: base64 of {\"api_…"),
    Shape("a JSON web token", r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}", "RFC 7519"),
    Shape("a private key", r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY", "RFC 7468; ssh-keygen(1)"),
    # an expansion such as https://$USER:$TOKEN@host is no secret yet
    Shape("a URL with a password", r"\b[a-z][a-z0-9+.-]*://[^/\s:@\"']*:(?!\$)[^/\s@\"']+@", "RFC 3986, 3.2.1"),
)  # fmt: skip

# the rows are compiled when they are used: most commands need none of them
_SWITCH = re.compile(r"|0|1|true|false|yes|no|on|off|none", re.IGNORECASE)
# NAME=value as shell assigns it: at the beginning of a word, also after export, env or a quote
_ASSIGNMENT = re.compile(r"(?<![\w$.{-])(?P<name>[A-Za-z_]\w*)=(?P<value>'[^']*'?|\"[^\"]*\"?|[^\s;&|]*)", re.ASCII)
_EXPANSION = re.compile(r"\"?(?:\$(?!['\"])|`)")  # $'…' and $"…" are texts


def named_secret(name: str, value: str) -> str:
    """Why the value of a variable of that name is a secret (``a password``), or an empty text where it is none."""
    if _SWITCH.fullmatch(value):
        return ""
    row = next((row for row in NAMES if re.fullmatch(row.pattern, name.upper())), None)
    return row.reason if row is not None and row.secret else ""


def secret_shape(text: str) -> str:
    """What the text holds that has the form of a token or key (``a GitHub token``), or an empty text."""
    return next((row.what for row in SHAPES if re.search(row.pattern, text, re.ASCII)), "")


def refuse_named(name: str, value: str, what: str, source: str) -> None:
    """Refuse a variable whose name says that its value is a secret; ``what`` is the option, for the message."""
    if reason := named_secret(name, value):
        raise RequestError(
            f"{what}: {name} looks like {reason}; the script and the run's records would contain it ({source})",
            hint=f"export {name} in your shell before you submit: the job inherits it, and it is written nowhere",
        )


def refuse_assignments(lines: Iterable[str], what: str, source: str) -> None:
    """Refuse a line of shell that sets such a variable to a text; an expansion (``$(cat FILE)``) passes."""
    for number, line in enumerate(lines, 1):
        for match in _ASSIGNMENT.finditer(line):
            value = match["value"]
            if not _EXPANSION.match(value):
                refuse_named(match["name"], value.strip("'\""), f"{what}: line {number}", source)


def refuse_shapes(text: str, what: str, source: str) -> None:
    """Refuse a text that holds a token or key; the message does not repeat it."""
    if found := secret_shape(text):
        raise RequestError(
            f"{what}: this looks like {found}; the script and the run's records would contain it ({source})",
            hint="export it in your shell before you submit and read the variable in the job: the job inherits it",
        )
