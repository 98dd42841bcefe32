"""Training after ALIGN, in PyTorch: settings, data, model, loss, optimisers, the loop. Reads shards through altalign.shards. No Beam."""
