"""One request: name, address, connection, response. The only place that knows the HTTP library."""
