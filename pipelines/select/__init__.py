"""`altalign select`: a run of another one's samples, by their scores."""
