"""How long a store or a web server is waited for, and how often it is asked."""

ATTEMPTS = 5
CONNECT_WITHIN_S = 10
ANSWERS_WITHIN_S = 120  # a store may think long about the parts of a large object
