"""Running engines in tests and in the demo: processes that end together, servers, a client."""
