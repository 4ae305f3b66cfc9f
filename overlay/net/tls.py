"""TLS between agents, and between agents and coordinator: the certificate names the other end.

Certificates are those of `inart certificates` (docs/deploy.md): inart://node/NAME for agents, inart://controller/NAME
for the coordinator. Both ends show a certificate, since agents serve and connect. The certificates of another authority
need not contain such names; then every holder of one is accepted under the name that it claims.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from controlplane.common.access import parse_uri
from controlplane.common.rpc.tls import Tls
from controlplane.common.whole_file import Fresh
from overlay.core.errors import OverlayError
from overlay.net.admission import Admission


@dataclass(frozen=True)
class Security:
    """The TLS of an agent or a coordinator. The files may be replaced at any time: each new connection uses their
    present content.

    Attributes:
        fresh: the contexts for connections to others, and for those that others open, by the files' present
            content.
        serve: the context for connections that others open.
        named: whether certificates contain names.
        admission: at a coordinator, its rules for connections (admission.py); None: each holder of a certificate of the
            authority may speak.
    """

    fresh: Fresh[tuple[ssl.SSLContext, ssl.SSLContext]]
    serve: ssl.SSLContext
    named: bool
    admission: Admission | None = None

    @property
    def connect(self) -> ssl.SSLContext:
        """The context for a connection to others."""
        return self.fresh.now()[0]

    @classmethod
    def of(cls, tls: Tls | None, admission: Admission | None = None) -> Security | None:
        """Return the TLS of the command line's options; None without TLS. Raise ValueError when the certificate, its
        key or the authority's certificate is missing.
        """
        if tls is None:
            return None
        if tls.certificate is None or tls.key is None or tls.authority is None:
            raise ValueError(
                "TLS: agents and coordinators need a certificate, its key and the authority's certificate "
                "(make them with `inart certificates`); for a token, `inart site run` gets them"
            )
        fresh = tls.fresh(partial(_contexts, strangers=admission is not None and admission.takes_tokens))
        serve = fresh.now()[1]

        def greet(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = fresh.now()[1]

        serve.sni_callback = greet  # at each handshake, also where no name is asked for
        return cls(fresh, serve, tls.names_roles(), admission)

    def check(self, transport: asyncio.BaseTransport, role: str, name: str | None = None) -> None:
        """Check that the certificate at the other end is of this role and name; raise OverlayError otherwise."""
        if self.named:
            check_certificate(transport.get_extra_info("peercert") or {}, role, name)


def check_certificate(certificate: Mapping[str, Any], role: str, name: str | None = None) -> None:
    """Check that a certificate is of this role and name; raise OverlayError otherwise."""
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    callers = [caller for caller in map(parse_uri, uris) if caller is not None]
    if not any(caller.role == role and name in (None, caller.name) for caller in callers):
        wanted = f"{role} {name}" if name else f"a {role}"
        raise OverlayError(f"the certificate at the other end is {', '.join(uris) or 'nobody'}'s, not {wanted}'s")


def _contexts(tls: Tls, *, strangers: bool) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts for connections to others, and for those that others open. With `strangers`, the latter may
    come without a certificate. Raise ValueError for unusable files.
    """
    assert tls.certificate is not None and tls.authority is not None, "agents have both"
    contexts = []
    for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a certificate names a node and no host: `Security.check`
        optional = strangers and protocol == ssl.PROTOCOL_TLS_SERVER
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(tls.certificate, tls.key)
            context.load_verify_locations(tls.authority)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(f"TLS: {tls.certificate}, {tls.key} or {tls.authority}: {error}") from None
        contexts.append(context)
    return contexts[0], contexts[1]
