"""``scontrol show assoc_mgr``: the limits of QOS and associations, and how much of each is used.

slurmctld answers, without the accounting daemon. A site may show users only their own rows (``PrivateData``), so a
missing limit is unknown, which is not the same as none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from clusterrun.scheduler.slurm.values import parse_float

_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z]*(?:/[A-Za-z/]+)?)=(\S*)")
_BOUND = re.compile(r"(N|[0-9.]{1,30})?(?:\(([0-9.]{1,30})\))?", re.ASCII)
_NAMED = re.compile(r"([^(]*)(?:\((\d+)\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitValue:
    """A limit and how much of it is used, in Slurm's units (MB, minutes); ``limit`` is None for no limit."""

    tres: str = ""
    limit: float | None = None
    used: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitScope:
    """A QOS, the share of a user or an account in it, or an association, each with its limits.

    ``kind`` is ``qos``, ``qos user``, ``qos account`` or ``association``. In a share of a QOS ``user`` is a numeric
    id. An association without a user belongs to an account.
    """

    kind: str
    qos: str = ""
    account: str = ""
    user: str = ""
    partition: str = ""
    parent: str = ""
    values: dict[str, str] = field(default_factory=dict)

    def bounds(self, field: str, tres: str = "") -> list[LimitValue]:
        """Return the limits of a name (``GrpTRES``, ``MaxJobsPU``), set or not, of one resource with ``tres``.

        The resources ``gres``, ``license`` and ``bb`` include all of their kind.
        """
        text = self.values.get(field, "")
        if "=" not in text:
            return [_bound("", text)] if text else []
        pairs = (part.partition("=") for part in text.split(","))
        found = [_bound(name, value) for name, _, value in pairs]
        return [b for b in found if not tres or b.tres == tres or b.tres.startswith(f"{tres}/")]


def limits_argv(qos: Sequence[str], accounts: Sequence[str]) -> list[str]:
    """Return the command for some QOS and the associations of some accounts; one of the two may be empty."""
    flags = ",".join(flag for flag, names in (("qos", qos), ("assoc", accounts)) if names)
    named = [f"{key}={','.join(names)}" for key, names in (("qos", qos), ("accounts", accounts)) if names]
    return ["scontrol", "show", "assoc_mgr", f"flags={flags}", *named]


def parse_limits(text: str) -> list[LimitScope]:
    """Parse everything that has limits, in Slurm's order."""
    found: list[LimitScope] = []
    qos, share = "", ""
    for line in text.splitlines():
        pairs = dict(_PAIR.findall(line))
        if line.startswith("QOS="):
            qos, share = _name(pairs["QOS"]), ""
            found.append(LimitScope(kind="qos", qos=qos))
        elif line.startswith("ClusterName="):
            qos, share = "", ""
            account, user = pairs.get("Account", ""), _name(pairs.get("UserName", ""))
            found.append(
                LimitScope(kind="association", account=account, user=user, partition=pairs.get("Partition", ""))
            )
        elif line.strip() in ("Account Limits", "User Limits"):
            share = f"qos {line.split()[0].lower()}"
        elif share and line.strip() and not pairs:
            match = _NAMED.fullmatch(line.strip())  # an account by its name, a user by number (one day both)
            user = (match[2] or match[1]) if match and share == "qos user" else ""
            found.append(LimitScope(kind=share, qos=qos, user=user, account="" if user else line.strip()))
        elif found and line[:1].isspace():
            found[-1].values.update(pairs)
    return [replace(scope, parent=_name(scope.values.get("ParentAccount", ""))) for scope in found]


def _name(text: str) -> str:
    """``root(0)`` is root."""
    match = _NAMED.match(text)
    return match[1] if match else text


def _bound(tres: str, text: str) -> LimitValue:
    match = _BOUND.fullmatch(text)
    if match is None:
        return LimitValue(tres=tres)
    return LimitValue(tres=tres, limit=parse_float(match[1] or ""), used=parse_float(match[2] or ""))
