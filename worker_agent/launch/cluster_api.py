"""The few calls to Kubernetes' API server that `inart kubernetes` makes, over HTTPS with the pod's own account.

No client library is needed for two lists and a patch; the token is read anew for each call, as the kubelet replaces it
from time to time.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_SECONDS = 20.0
MOST_BYTES = 256 << 20
Object = Mapping[str, Any]
"""An object in the sense of Kubernetes: a job, a pod."""


class ClusterError(Exception):
    """The API server does not answer, or refuses; the message says what was asked."""


class UnknownPath(ClusterError):
    """The API server does not have the path, because the kind of objects is not installed."""


class Cluster:
    """An API server.

    Args:
        server: its URL; "": the one of the cluster that this pod runs in.
        account: folder with the service account's `token` and `ca.crt`, as every pod has it.
    """

    def __init__(self, server: str = "", account: Path = ACCOUNT) -> None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not server and not host:
            raise ClusterError("this is no pod of a cluster (KUBERNETES_SERVICE_HOST is not set): give --server URL")
        bare = f"[{host}]" if ":" in host else host
        self._server = server.rstrip("/") or f"https://{bare}:{port}"
        self._token = account / "token"
        authority = account / "ca.crt"
        try:
            self._tls = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
        except (OSError, ssl.SSLError) as error:
            raise ClusterError(f"{authority} cannot be used: {error}") from None

    def items(self, path: str, query: str = "") -> list[Object]:
        """Return all objects under a path, as the API server's cache has them (resourceVersion=0), which is cheap."""
        found = self._call("GET", f"{path}?resourceVersion=0{query}")
        items = found.get("items")
        if not isinstance(items, list):
            raise ClusterError(f"GET {path}: the answer is no list")
        return items

    def annotate(self, path: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of one object."""
        self._call("PATCH", path, {"metadata": {"annotations": dict(annotations)}})

    def _call(self, method: str, path: str, body: Object | None = None) -> Any:
        headers = {"Accept": "application/json"}
        if self._token.exists():
            headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        content = None
        if body is not None:
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/merge-patch+json"
        request = urllib.request.Request(f"{self._server}{path}", content, headers, method=method)
        try:
            # A proxy of the environment is never used: the API server is in the cluster.
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._tls)
            )
            with opener.open(request, timeout=CALL_SECONDS) as answer:
                return json.loads(answer.read(MOST_BYTES))
        except urllib.error.HTTPError as error:
            kind = UnknownPath if error.code == 404 else ClusterError
            raise kind(f"{method} {path}: {error.code} {_reason(error)}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ClusterError(f"{method} {path}: {error}") from None


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the message of the Status object with which the API server refuses."""
    try:
        return str(json.loads(error.read(1 << 16)).get("message", error.reason))
    except (OSError, ValueError, AttributeError):
        return str(error.reason)
