"""Names by which a browser may ask for a page."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit


def is_own_name(host: str, names: Collection[str]) -> bool:
    """Return whether a request's Host header names this machine: by an address, as localhost, or by one of `names`.

    Where everybody who reaches the page may see it, this refuses the page of another site that has its own name resolve
    to this machine's address (DNS rebinding): a browser would let that page read our answers. "" is accepted, since no
    browser sends that.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        name = name.rstrip(".")
        return not host or name == "localhost" or name.endswith(".localhost") or name in names
    return True
