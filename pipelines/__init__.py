"""Beam, and only here: reads, binds filters to columns, groups, writes, counts."""
