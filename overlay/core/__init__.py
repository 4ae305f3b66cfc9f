"""The overlay's decisions and additions, without sockets and threads: the same code runs over TCP and simulated."""
