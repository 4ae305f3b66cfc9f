"""Another user of a host who forges a job's packets: a process in the host that gives up all its privileges.

Reads lines of JSON from its standard input, {"address": of the interface, "packets": [{"port", "label", "flags", "job",
"epoch", "sequence", "count", "bitmap"}]}, and sends `count` packets of random values with sequence numbers from
`sequence` on for each. Ends with the input, and prints as JSON its privileges and what it has sent. Uses the standard
library only.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import sys
import time

NOBODY = 65534
GROUP = "239.73.78.65"
HEADER = struct.Struct(">BBHIIIQ")
PAUSE = 0.0005


def give_up_privileges(user: int = NOBODY) -> str:
    """Become another user, without groups and capabilities. Return the capabilities that are left, as the kernel prints
    them.
    """
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    with open("/proc/self/status") as status:
        return next(line.split()[1] for line in status if line.startswith("CapEff"))


def main() -> int:
    version, values, seed = (int(word) for word in sys.argv[1:4])
    capabilities = give_up_privileges(int(sys.argv[4]) if len(sys.argv) > 4 else NOBODY)
    drawn = random.Random(seed)
    sent = refused = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for line in sys.stdin:
            order = json.loads(line)
            interface = socket.inet_aton(order["address"])
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 64)
            for one in order["packets"]:
                for number in range(one["count"]):
                    sequence = max(0, one["sequence"] + number) & 0xFFFFFFFF
                    head = HEADER.pack(
                        version, one["flags"], one["job"], one["label"], one["epoch"], sequence, one["bitmap"]
                    )
                    try:
                        sender.sendto(head + drawn.randbytes(4 * values), (GROUP, one["port"]))
                        sent += 1
                    except OSError:
                        refused += 1
                    time.sleep(PAUSE)
    print(json.dumps({"uid": os.geteuid(), "capabilities": capabilities, "sent": sent, "not sent": refused}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
