"""`altalign trial`: what a curation will keep, download and take, from a sample of its images."""
