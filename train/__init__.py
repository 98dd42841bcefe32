"""Training after ALIGN, in PyTorch. Shards are read through altalign.shards, without Beam."""
