"""What may be asked at all: addresses, domains, robots.txt."""
