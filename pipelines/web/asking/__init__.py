"""Who is asked next, how often, and what becomes of it."""
