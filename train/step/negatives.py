"""How hard the negatives of each source are: the diagnosis of ZeroVL's figure 4."""

from collections.abc import Sequence

import torch

from altalign.train.step.accumulation import StepResult
from altalign.train.step.global_batch import global_batch
from altalign.train.step.loss import negatives_log_p

NEGATIVES = "negatives_log_p/"  # before the source, in the metrics


def by_source(result: StepResult, own: Sequence[str], sources: Sequence[str], *, block: int) -> dict[str, float]:
    """The mean `negatives_log_p` of the pairs of each source in a step's global batch, the same on all ranks.

    `own` are the sources of this process's pairs; `sources` names all that there are, in one order on all ranks. A
    source without a pair in the batch is left out. Collective.
    """
    images, texts = result.embeddings
    values = negatives_log_p(images, texts, images.new_tensor(result.temperature), block=block)
    places = torch.tensor([sources.index(source) for source in own], device=images.device)
    sums = torch.zeros(2, len(sources), dtype=torch.float64, device=images.device)
    sums.index_add_(1, places, torch.stack([values, torch.ones_like(values)]).double())
    totals, counts = global_batch(len(images), images.device).summed(sums).tolist()
    return {source: total / count for source, total, count in zip(sources, totals, counts, strict=True) if count}
