"""`altalign trial`: what a curation will keep and cost, from a sample of its images; the policy that follows."""
