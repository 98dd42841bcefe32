"""Pure: Arrow columns in, verdict column out. No Beam, no files."""
