"""Every address of ours that is given as [::] is that of IPv4, too: the controller's, the page's, the coordinator's of
sites, and a site's own.
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.request import urlopen

import numpy as np
import pytest

from controlplane.common import dual_stack
from controlplane.common.rpc.channels import bind
from controlplane.service.web.server import Web
from overlay.core.site_network import SiteNetwork
from overlay.sites import init
from overlay.sites.command import SiteSettings, make_coordinator
from tests.overlay.test_sites_elastic import has_ipv6

HOSTS = "127.0.0.1", "::1"
pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 address of its own (::1)")


def connects(port: int) -> list[str]:
    """Return those of the hosts at which a connection to this port is accepted."""
    found = []
    for host in HOSTS:
        try:
            socket.create_connection((host, port), 10).close()
        except ConnectionRefusedError:
            continue
        found.append(host)
    return found


def test_the_controller_accepts_both_kinds():
    server, port = bind("[::]:0")
    server.start()
    assert connects(port) == [*HOSTS]
    server.stop(0).wait(10)


@pytest.mark.parametrize(("host", "reached"), [("[::]", HOSTS), ("[::1]", ("::1",)), ("0.0.0.0", ("127.0.0.1",))])
def test_the_page_is_at_both_kinds_of_addresses(host, reached):
    with closing(Web(f"{host}:0")) as web:
        web.start(None)  # type: ignore[arg-type]  # /healthz needs no site
        port = web.url.rstrip("/").rpartition(":")[2]
        assert connects(int(port)) == [*reached]
        for own in reached:
            where = f"[{own}]" if ":" in own else own
            with urlopen(f"http://{where}:{port}/healthz", timeout=30) as answer:
                assert answer.read() == b"ok\n"


def test_sites_of_both_kinds_train_together():
    """The coordinator and both sites listen at [::]. The site that joins over IPv4 is told to others as IPv4."""
    with make_coordinator("::", 0, SiteSettings(2, probe_seconds=0.0), SiteNetwork(256)) as coordinator:
        port = coordinator.address[1]
        wheres = {"a": f"127.0.0.1:{port}", "b": f"[::1]:{port}"}
        groups = {name: init(where, name, listen="[::]:0", timeout=60.0) for name, where in wheres.items()}
        assert {name: member.address[0] for name, member in coordinator.members.items()} == dict(
            zip("ab", HOSTS, strict=True)
        )
        assert connects(groups["a"].agent.listen[1]) == [*HOSTS]

        def averaged(name: str) -> np.ndarray:
            groups[name].agree(np.zeros(4, np.uint8), 0)
            values = np.full(100, float(ord(name)), np.float32)
            groups[name].average(values, round=0)
            return values

        with ThreadPoolExecutor(2) as pool:
            for values in pool.map(averaged, groups):
                np.testing.assert_allclose(values, (ord("a") + ord("b")) / 2)
        for group in groups.values():
            group.close()


def test_only_addresses_that_stand_for_ipv4_change():
    given = ("::ffff:10.0.0.1", "::ffff:10.0.0.1%2", "10.0.0.1", "::1", "fe80::1%eth0", "sites.example.org")
    assert [dual_stack.plain(each) for each in given] == ["10.0.0.1", "10.0.0.1", *given[2:]]
