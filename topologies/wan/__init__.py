"""Emulated wide-area networks: a namespace per site, agents over TCP, and links with rates, delays and loss."""
