"""Two tables that detect secrets in names and values, so that none gets into a script or a record. No I/O.

Slurm stores the batch script (``scontrol write batch_script``), and a site or ``--shared`` may let others read it.
For a name the first matching row of ``SECRET_NAMES`` counts; for a text any row of ``SECRET_PATTERNS``.
"""

# ruff: noqa: E501 (tables: a pattern stays in one piece)

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterrun.base.errors import RequestError, from_source

_ROLE = r"(?:_(?:READ|WRITE|RO|RW|PROD|DEV|TEST|MAIN|OLD|NEW|[0-9]+))?"

#: a pattern of whole variable names in upper case, whether the value is secret, the reason, and the reference
SECRET_NAMES: tuple[tuple[str, bool, str, str], ...] = (
    (r"HF_HUB_DISABLE_IMPLICIT_TOKEN", False, "a switch", "huggingface_hub, environment variables"),
    (r"GOOGLE_APPLICATION_CREDENTIALS", False, "the path of a key file", "Google Cloud, Application Default Credentials"),
    (r".*_(?:PATH|FILE|DIR|SOCK)|PGPASSFILE", False, "the path of a file", "PostgreSQL 17, 34.15; ssh-agent(1); AWS CLI, environment variables"),
    (r"(?:OLD)?PWD", False, "the current folder", "POSIX.1-2017, cd"),
    (r"(?:.*_)?KEY_ID", False, "an id, which is not a secret", "AWS, IAM access keys"),
    (
        r"(?:.*_)?(?:EOS|BOS|PAD|SEP|CLS|MASK|UNK|EOT|SOT|SPECIAL|STOP|START|END|BEGIN|FIRST|LAST|NEXT|NEW|PER|IMAGE|IMG|AUDIO|VIDEO|TEXT|MAX|MIN|NUM|REGISTER|PATCH)_TOKEN(?:_.*)?",
        False, "a vocabulary token", "transformers, PreTrainedTokenizer",
    ),
    (r"(?:.*_)?TOKEN_(?:IDS?|INDEX|COUNT|DIM|LEN|LENGTH|LIMIT|BUDGET|TYPE|DROPOUT|MIXER|MERGING)(?:_.*)?", False, "a number of tokens or a token id", "transformers, configuration"),
    (r"(?:.*_)?(?:PUBLIC|PRIMARY|FOREIGN|SORT|CACHE|PARTITION|TEXT|IMAGE|LABEL|PROMPT|TARGET|INPUT|OUTPUT|DATA|DATASET|COLUMN|FEATURE|METRIC|MONITOR|STATE|GROUP|SAMPLE|QUERY|RNG)_KEY", False, "the name of a column or a key of a table", "datasets, PyTorch Lightning"),
    (r"(?:.*_)?(?:FORWARD|BACKWARD|SINGLE|ONE|TWO|FIRST|SECOND|N|NUM)_PASS", False, "a pass through a model or over the data", "common in training scripts"),
    (r".*(?:PASSWORD|PASSWD|PASSPHRASE|SSHPASS).*", True, "a password", "PostgreSQL 17, 34.15 (PGPASSWORD); sshpass(1)"),
    (rf".+_(?:PASS|PWD){_ROLE}", True, "a password", "MySQL 8.4, 6.9 (MYSQL_PWD)"),
    (r".*SECRETS?(?:_.*)?|.*SECRETKEY", True, "a secret", "AWS CLI, environment variables (AWS_SECRET_ACCESS_KEY)"),
    (r"(?:.*_)?CRED(?:ENTIAL)?S?(?:_.*)?", True, "credentials", "common in deployment scripts"),
    (r".*API_?KEYS?(?:_.*)?", True, "an API key", "W&B, environment variables (WANDB_API_KEY)"),
    (rf"(?:.*_)?KEY{_ROLE}", True, "a key", "Kaggle API (KAGGLE_KEY)"),
    (r".*TOKEN(?:_.*)?", True, "a token", "huggingface_hub, environment variables (HF_TOKEN)"),
    (rf".+_PAT{_ROLE}", True, "a personal access token", "GitHub, managing personal access tokens"),
    (r"(?:.*_)?(?:BEARER|JWT|COOKIE|BASIC_AUTH|AUTH_CONFIG|CONNECTION_STRING|WEBHOOK(?:_URL)?)", True, "a credential", "GitLab CI (DOCKER_AUTH_CONFIG); Azure Storage, connection strings"),
)  # fmt: skip

#: the name of a kind of token or key, a pattern that finds it in a text, and the reference of its format
SECRET_PATTERNS: tuple[tuple[str, str, str], ...] = (
    ("a Hugging Face token", r"\b(?:hf|api_org)_[A-Za-z0-9]{30,}", "huggingface_hub, security tokens; gitleaks"),
    ("a GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{36,})", "GitHub, token formats"),
    ("a GitLab token", r"\bgl(?:pat|dt|rt|oas|ptt|soat|agent|cbt|ft)-[\w-]{20,}", "GitLab, token overview"),
    # a name such as sk-learn-gradient-boosting-v2 has no 16 letters and digits in a row
    ("an API key (sk-…)", r"(?<![\w-])sk-(?=[\w-]*[A-Za-z0-9]{16})(?=[\w-]*[0-9])[\w-]{20,}", "OpenAI and Anthropic, API keys; gitleaks"),
    ("an AWS access key id", r"(?<![A-Z0-9])A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Z0-9])", "AWS, IAM identifiers"),
    ("a Google API key", r"\bAIza[\w-]{35}", "gitleaks"),
    ("a Slack token", r"\bxox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/T\w+/B\w+/\w+", "Slack, token types; incoming webhooks"),
    # 40 hexadecimal digits alone may be a git commit
    ("a W&B API key", r"\bwandb_v1_\w{40,}|(?i:wandb[\w-]*key|wandb\s+login(?:\s+--?[\w-]+)*|api[_-]?key)[\"']?[\s=:]+[\"']?[0-9a-f]{40}\b", "W&B, API keys"),
    ("a Kaggle token", r"\bKGAT_[0-9a-f]{32}", "Kaggle, API tokens"),
    ("an NVIDIA API key", r"\bnvapi-[\w-]{40,}", "NVIDIA NGC, API keys"),
    ("a Neptune API token", r"\beyJhcGlf[A-Za-z0-9+/=]{30,}", "Neptune, API token: base64 of {\"api_…"),
    ("a JSON web token", r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}", "RFC 7519"),
    ("a private key", r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY", "RFC 7468; ssh-keygen(1)"),
    # an expansion such as https://$USER:$TOKEN@host is not a secret
    ("a URL with a password", r"\b[a-z][a-z0-9+.-]*://[^/\s:@\"']*:(?!\$)[^/\s@\"']+@", "RFC 3986, 3.2.1"),
)  # fmt: skip

# the patterns are compiled on use: most commands need none of them
_SWITCH = re.compile(r"|0|1|true|false|yes|no|on|off|none", re.IGNORECASE)
# a shell assignment NAME=value: at the start of a word, also after export, env or a quote
_ASSIGNMENT = re.compile(r"(?<![\w$.{-])(?P<name>[A-Za-z_]\w*)=(?P<value>'[^']*'?|\"[^\"]*\"?|[^\s;&|]*)", re.ASCII)
_EXPANSION = re.compile(r"\"?(?:\$(?!['\"])|`)")  # $'…' and $"…" are literals


def named_secret(name: str, value: str) -> str:
    """Return what a variable of this name holds (``a password``), or an empty text if it is not a secret."""
    if _SWITCH.fullmatch(value):
        return ""
    for pattern, is_secret, reason, _ in SECRET_NAMES:
        if re.fullmatch(pattern, name.upper()):
            return reason if is_secret else ""
    return ""


def secret_shape(text: str) -> str:
    """Return the kind of token or key in a text (``a GitHub token``), or an empty text."""
    for what, pattern, _ in SECRET_PATTERNS:
        if re.search(pattern, text, re.ASCII):
            return what
    return ""


def refuse_named(name: str, value: str, what: str, source: str) -> None:
    """Raise RequestError if the variable's name marks a secret; ``what`` is the option, for the message."""
    if reason := named_secret(name, value):
        raise RequestError(
            f"{what}: {name} looks like {reason}{from_source(source, what)}; the batch script and the run's records"
            " would contain its value",
            hint=f"export {name} in your shell and add --secret {name}; clusterrun passes it on without storing it",
        )


def refuse_assignments(lines: Iterable[str], what: str, source: str) -> None:
    """Raise RequestError for a shell line that assigns a literal secret; an expansion (``$(cat FILE)``) passes."""
    for number, line in enumerate(lines, 1):
        for match in _ASSIGNMENT.finditer(line):
            value = match["value"]
            if not _EXPANSION.match(value):
                refuse_named(match["name"], value.strip("'\""), f"{what}: line {number}", source)


def refuse_shapes(text: str, what: str, source: str = "") -> None:
    """Raise RequestError for a text that contains a token or key; the message does not repeat it."""
    if shape := secret_shape(text):
        raise RequestError(
            f"{what}: found what looks like {shape}{from_source(source, what)}; the batch script and the run's"
            " records would contain it",
            hint="export it as a variable in your shell before you submit, and read that variable in the job",
        )
