"""What a controller shows over HTTP: a page in the browser, a snapshot as JSON, metrics for Prometheus."""
