"""`altalign score`: columns of scores beside the shards of a finished run."""
