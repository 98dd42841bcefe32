"""Decides what may be asked at all: addresses, domains, robots.txt."""
