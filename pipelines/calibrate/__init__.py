"""`altalign calibrate`: what the search for near-duplicates finds, what it costs, and the threshold that a budget allows."""
