"""``scontrol show assoc_mgr``: the limits of QOS and associations, and how much of each is used.

slurmctld answers, without the accounting daemon. A site may show users only their own rows (``PrivateData``), so a
missing limit is unknown, which is not the same as none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from clusterrun.scheduler.slurm.values import parse_float

_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z]*(?:/[A-Za-z/]+)?)=(\S*)")
_BOUND = re.compile(r"(N|[0-9.]{1,30})?(?:\(([0-9.]{1,30})\))?", re.ASCII)
_NAMED = re.compile(r"([^(]*)(?:\((\d+)\))?")


Bound = tuple[str, float | None, float | None]
"""A resource, its limit (None: no limit) and how much of it is used, in Slurm's units (MB, minutes)."""


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
    values: dict[str, str] = field(default_factory=dict)

    @property
    def parent(self) -> str:
        """The parent of an association's account."""
        return _name(self.values.get("ParentAccount", ""))

    @property
    def is_default(self) -> bool:
        """Return whether this association is its user's default."""
        return "Yes" in self.values.get("DefAssoc", "")

    def bounds(self, field: str, tres: str = "") -> list[Bound]:
        """Return the limits of a name (``GrpTRES``, ``MaxJobsPU``), set or not, of one resource with ``tres``.

        The resources ``gres``, ``license`` and ``bb`` include all of their kind.
        """
        text = self.values.get(field, "")
        if "=" not in text:
            return [_bound("", text)] if text else []
        pairs = (part.partition("=") for part in text.split(","))
        wanted = [(name, value) for name, _, value in pairs if tres in ("", name) or name.startswith(f"{tres}/")]
        return [_bound(name, value) for name, value in wanted]


def limits_argv(user: str) -> list[str]:
    """Return the command for a user's associations, all accounts and every QOS, with their use."""
    return ["scontrol", "show", "assoc_mgr", "flags=assoc,qos", f"users={user}"]


def parse_limits(text: str) -> list[LimitScope]:
    """Parse everything that has limits, in Slurm's order."""
    scopes: list[LimitScope] = []
    qos, share = "", ""
    for line in text.splitlines():
        title, pairs = line.strip(), dict(_PAIR.findall(line))
        if line.startswith("QOS="):
            qos, share = _name(pairs["QOS"]), ""
            scopes.append(LimitScope(kind="qos", qos=qos))
        elif line.startswith("ClusterName="):
            qos, share = "", ""
            scopes.append(_association(pairs))
        elif title in ("Account Limits", "User Limits"):
            share = f"qos {title.split()[0].lower()}"
        elif share and title and not pairs:
            scopes.append(_share(share, qos, title))
        elif scopes and line[:1].isspace():
            scopes[-1].values.update(pairs)
    return scopes


def _association(pairs: Mapping[str, str]) -> LimitScope:
    return LimitScope(
        kind="association",
        account=pairs.get("Account", ""),
        user=_name(pairs.get("UserName", "")),
        partition=pairs.get("Partition", ""),
    )


def _share(kind: str, qos: str, title: str) -> LimitScope:
    """Return the share of an account, which its title names, or of a user, a number there (one day both)."""
    match = _NAMED.fullmatch(title)
    if kind == "qos user" and match is not None:
        return LimitScope(kind=kind, qos=qos, user=match[2] or match[1])
    return LimitScope(kind=kind, qos=qos, account=title)


def _name(text: str) -> str:
    """``root(0)`` is root."""
    match = _NAMED.match(text)
    return match[1] if match else text


def _bound(tres: str, text: str) -> Bound:
    match = _BOUND.fullmatch(text)
    if match is None:
        return tres, None, None
    return tres, parse_float(match[1] or ""), parse_float(match[2] or "")
