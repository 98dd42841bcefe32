"""From shards to batches: index, order, samples, tokenizer, loader."""
