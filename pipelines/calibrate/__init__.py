"""`altalign calibrate`: measures the search for near-duplicates and chooses a threshold within a budget."""
