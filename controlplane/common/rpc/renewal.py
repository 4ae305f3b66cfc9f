"""Renews an agent's certificate: the controller issues the next one while the present one is valid."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from pathlib import Path

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, NoAnswer, ask
from controlplane.common.rpc.tls import Tls, not_after
from controlplane.common.whole_file import replace_file

LOOK_SECONDS = 60.0
DUE = 2 / 3
"""Part of the time between the writing of a certificate's file and the certificate's end after which it is renewed."""


def due(certificate: Path, now: datetime.datetime) -> bool:
    """Return whether a certificate is to be renewed. Raise OSError, ValueError or LookupError where it cannot be
    read."""
    end = not_after(certificate.read_text())
    begin = datetime.datetime.fromtimestamp(certificate.stat().st_mtime, datetime.UTC)
    return now > begin + DUE * (end - begin)


class Renewal:
    """Renews a certificate in its files, from `start` to `close`. Open connections stay as they are.

    Where the controller renews none, or the files cannot be written, the log says so once, and it is tried again.
    """

    def __init__(self, controller: str, tls: Tls, log: Callable[[str], None]) -> None:
        self._controller, self._tls, self._log = controller, tls, log
        self._closed = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="certificate", daemon=True)

    def start(self) -> None:
        """Begin to renew, if there is a certificate."""
        if self._tls.certificate is not None:
            self._thread.start()

    def close(self) -> None:
        """End, without waiting."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> bool:
        """Renew the certificate if it is due. Return whether it was renewed."""
        certificate, key = self._tls.certificate, self._tls.key
        assert certificate is not None and key is not None, "there is none without the other"
        try:
            if not due(certificate, datetime.datetime.now(datetime.UTC)):
                return False
            new, its_key = self._next()
            # Whoever connects between the two finds no pair, and tries again.
            replace_file(key, its_key)
            replace_file(certificate, new, 0o644)
        except NoAnswer:
            return False
        except (ControllerError, OSError, ValueError, LookupError) as error:
            if str(error) != self._said:
                self._said = str(error)
                self._log(f"the certificate {certificate} is not renewed: {error}")
            return False
        self._log(f"the certificate {certificate} is renewed")
        return True

    def _next(self) -> tuple[bytes, bytes]:
        """Return the next certificate and its key (PEM). Raise NoAnswer or ControllerError where there is none."""
        reply = ask(self._controller, "renew", pb.RenewRequest(), self._tls)
        return reply.certificate, reply.key
