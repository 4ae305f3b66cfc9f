"""The parameter server, which is the root of aggregation trees."""

from ps_server.server import Server

__all__ = ["Server"]
