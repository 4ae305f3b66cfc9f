"""The HTTP server of a controller: a page in the browser, a snapshot as JSON, metrics for Prometheus."""
