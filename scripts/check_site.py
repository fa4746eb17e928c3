"""Name what the built site loads from elsewhere; exit with 1 if it does: `python scripts/check_site.py FOLDER`."""

import re
import sys
from pathlib import Path

#: A tag that makes a browser load its address (a link to follow is none, nor is the address of the page itself).
LOADING = re.compile(r"<(?:script|img|iframe|source|object|link(?![^>]*\brel=\"?(?:canonical|prev|next))\b)\b[^>]*>")
ADDRESS = re.compile(r"(?:src|href|srcset|data)=[\"']?((?:https?:)?//[^\"'\s>]+)")
IN_CSS = re.compile(r"(?:@import\s+|url\(\s*)[\"']?((?:https?:)?//[^\"')\s]+)")


def loaded(text: str) -> list[str]:
    """Return the addresses of other hosts that a page or a style sheet loads."""
    return [address for tag in LOADING.findall(text) for address in ADDRESS.findall(tag)] + IN_CSS.findall(text)


if __name__ == "__main__":
    found = [
        f"{path} loads {address}"
        for path in sorted(Path(sys.argv[1]).rglob("*"))
        if path.suffix in (".html", ".css", ".svg")
        for address in loaded(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(found) or "the site loads nothing from elsewhere")
    sys.exit(bool(found))
