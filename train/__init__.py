"""Training after ALIGN, in PyTorch. Shards are read through altalign.data.shards, without Beam."""
