"""Wide-area networks, a namespace a site: agents over TCP in hosts, links with rates, delays and loss."""
