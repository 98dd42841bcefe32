"""Models that leave for other libraries, and models of others that come in."""
