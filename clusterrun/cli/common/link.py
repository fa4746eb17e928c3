"""The cluster's end of ``--remote``: read what the user's machine sends with a command, on standard input.

It is one JSON object, and then the input ends:

    {"version": 1, "terminal": BOOL, "environ": {NAME: VALUE}, "submission": "AT-TOKEN" or null,
     "places": {FILE: PLACE} or null, "job": ID or ""}

``environ`` has the values of ``--secret``, which must not be in a command line, and the terminal's TERM and NO_COLOR.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from clusterrun.base.decode import parse_object
from clusterrun.base.errors import RequestError
from clusterrun.logs.frames import parse_place
from clusterrun.logs.request import Resume
from clusterrun.run_folder.identity import SUBMISSION

VERSION = 1


def read_link(text: str, environ: MutableMapping[str, str]) -> tuple[bool, Resume | None]:
    """Return whether the other machine's output is a terminal and how followed logs continue; set the variables.

    Raises RequestError, also if the machines' versions differ.
    """
    try:
        sent = parse_object(text)
        version = sent["version"]
        if version != VERSION:
            raise RequestError(
                f"your machine and the login node have different clusterrun versions (protocols {version} and"
                f" {VERSION})",
                hint="install your version on the login node: clusterrun remote setup HOST",
            )
        environ.update({str(name): str(value) for name, value in sent["environ"].items()})
        if sent["submission"]:
            environ[SUBMISSION] = str(sent["submission"])
        places = sent["places"]
        known = {str(file): place for file, one in (places or {}).items() if (place := parse_place(one))}
        resume = None if places is None else Resume(known, str(sent["job"]))
        return bool(sent["terminal"]), resume
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(
            f"cannot read the request from your machine: {error}", hint="clusterrun remote setup HOST"
        ) from error
