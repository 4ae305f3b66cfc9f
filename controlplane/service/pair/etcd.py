"""A store in etcd (3.4 or later), over its JSON gateway: no client library is needed."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from controlplane.service.pair.store import NOTHING, StoreError, Value

CALL_SECONDS = 0.6
"""Seconds that one member of the cluster may take to answer; then the next one is asked."""


FULL = "compact and defragment it, then disarm its alarm (etcdctl alarm disarm)"


class EtcdStore:
    """Values under a prefix in an etcd cluster.

    Args:
        members: "HOST:PORT" of some of its members.
        prefix: the prefix of all names here, so that several networks can use one cluster.
        credentials: a folder with authority.pem and, where the cluster asks for them, certificate.pem and key.pem;
            without one, connections are not encrypted.
    """

    def __init__(self, members: Sequence[str], prefix: str, credentials: Path | None = None) -> None:
        self._members, self._prefix = list(members), prefix
        self._tls = None if credentials is None else _tls(credentials)
        self._lock = threading.Lock()

    def read(self, name: str) -> Value:
        found = self._call("range", {"key": self._key(name)}).get("kvs", [])
        if not found:
            return NOTHING
        return Value(base64.b64decode(found[0].get("value", "")), int(found[0]["mod_revision"]))

    def commit(self, values: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        compare = [
            {"key": self._key(name), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
            for name, revision in expected.items()
        ]
        puts = [{"requestPut": {"key": self._key(name), "value": _text(value)}} for name, value in values.items()]
        done = self._call("txn", {"compare": compare, "success": puts})
        return int(done["header"]["revision"]) if done.get("succeeded") else 0

    def compact(self, revision: int) -> None:
        self._call("compaction", {"revision": str(revision)})

    def _key(self, name: str) -> str:
        return _text(f"{self._prefix}/{name}".encode())

    def _call(self, method: str, request: Mapping[str, Any]) -> Any:
        body, problem = json.dumps(request), ""
        with self._lock:
            members = list(self._members)
        for member in members:
            try:
                answer = self._ask(member, method, body)
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = f"{member}: {error or type(error).__name__}"
                if "space exceeded" in problem:
                    raise StoreError(f"etcd is full ({problem}): {FULL}") from None
                continue
            with self._lock:  # The member that has answered is asked first from now on.
                self._members = [member, *(other for other in self._members if other != member)]
            return answer
        raise StoreError(f"etcd does not answer ({problem})")

    def _ask(self, member: str, method: str, body: str) -> Any:
        host, _, port = member.rpartition(":")
        where = host.strip("[]"), int(port)
        connection = (
            http.client.HTTPConnection(*where, timeout=CALL_SECONDS)
            if self._tls is None
            else http.client.HTTPSConnection(*where, timeout=CALL_SECONDS, context=self._tls)
        )
        try:
            connection.request("POST", f"/v3/kv/{method}", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            content = reply.read()
        finally:
            connection.close()
        answer = json.loads(content)
        if reply.status != 200:
            raise ValueError(answer.get("error", f"status {reply.status}") if isinstance(answer, dict) else "no object")
        return answer


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _tls(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    if (folder / "certificate.pem").exists():
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context
