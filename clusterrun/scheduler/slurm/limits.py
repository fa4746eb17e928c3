"""The limits of QOS and associations, with what is in use of each, as ``scontrol show assoc_mgr`` tells them.

slurmctld itself answers, so no accounting daemon is asked. A site may let people see their own rows only
(``PrivateData``): a limit that is not in the answer was not seen, which is not the same as none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z]*(?:/[A-Za-z/]+)?)=(\S*)")
_BOUND = re.compile(r"(N|[0-9.]{1,30})?(?:\(([0-9.]{1,30})\))?", re.ASCII)
_NAMED = re.compile(r"([^(]*)(?:\((\d+)\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitValue:
    """A limit and what is in use of it, in Slurm's units (MB, minutes); ``limit`` None is no limit."""

    tres: str = ""
    limit: float | None = None
    used: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitScope:
    """A QOS, one user's or account's share of it, or an association: whatever has limits.

    ``kind`` is ``qos``, ``qos user``, ``qos account`` or ``association``. For a share of a QOS ``user`` is a numeric
    id. An association without a user is an account's own.
    """

    kind: str
    qos: str = ""
    account: str = ""
    user: str = ""
    partition: str = ""
    parent: str = ""
    values: dict[str, str] = field(default_factory=dict)

    def bounds(self, field: str, tres: str = "") -> list[LimitValue]:
        """The bounds under a name (``GrpTRES``, ``MaxJobsPU``), of a resource where it is named, set or not.

        ``tres`` ``gres``, ``license`` and ``bb`` stand for all of their kind.
        """
        text = self.values.get(field, "")
        if "=" not in text:
            return [_bound("", text)] if text else []
        pairs = (part.partition("=") for part in text.split(","))
        found = [_bound(name, value) for name, _, value in pairs]
        return [b for b in found if not tres or b.tres == tres or b.tres.startswith(f"{tres}/")]


def limits_argv(qos: Sequence[str], accounts: Sequence[str]) -> list[str]:
    """Ask for some QOS and some accounts' associations; one of the two may be empty."""
    flags = ",".join(word for word, names in (("qos", qos), ("assoc", accounts)) if names)
    named = [f"{word}={','.join(names)}" for word, names in (("qos", qos), ("accounts", accounts)) if names]
    return ["scontrol", "show", "assoc_mgr", f"flags={flags}", *named]


def parse_limits(text: str) -> list[LimitScope]:
    """Everything in the answer that has limits, in its order."""
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
    return [_with_parent(holder) for holder in found]


def _with_parent(holder: LimitScope) -> LimitScope:
    parent = _name(holder.values.get("ParentAccount", ""))
    return LimitScope(kind=holder.kind, qos=holder.qos, account=holder.account, user=holder.user,
                  partition=holder.partition, parent=parent, values=holder.values)  # fmt: skip


def _name(text: str) -> str:
    """``root(0)`` is root."""
    match = _NAMED.match(text)
    return match[1] if match else text


def _bound(tres: str, text: str) -> LimitValue:
    match = _BOUND.fullmatch(text)
    if match is None:
        return LimitValue(tres=tres)
    return LimitValue(tres=tres, limit=_number(match[1]), used=_number(match[2]))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text and text != "N" else None
    except ValueError:
        return None
