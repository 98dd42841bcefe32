"""The demo web: a small pool of pages and images, drawn from a seed, that shows what a curation keeps and drops."""
