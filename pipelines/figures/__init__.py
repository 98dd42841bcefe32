"""What the audit counts and samples while the stages run."""
