"""The verbs of the command line, in files as `altalign --help` groups them."""
