"""`altalign nlip noise RUN`: the contrastive loss of every pair that a run was trained on, and how noisy it makes it.

Losses are those of evaluation: central crops, no dropout, nothing left out, the learned temperature, no smoothing, and
both directions averaged. A loss depends on the batch; so batches are fixed: pairs in the order of their keys, which are
hashes, cut into batches of equal size. A pair that is in two runs counts once. Ranks take batches in turn, and a
command that was stopped goes on where it was.
"""

from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from itertools import compress, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from altalign import storage, terminal
from altalign.errors import UnreadableError
from altalign.eval.encoded import ENCODED_TOGETHER
from altalign.train.data import by_key, noise_estimates
from altalign.train.data.by_key import in_order
from altalign.train.data.noise_estimates import Losses, known, mark_of, table_of
from altalign.train.data.samples import Samples
from altalign.train.data.training_data import prepared
from altalign.train.exchange import encoders
from altalign.train.exchange.encoders import Encoders, Trained
from altalign.train.report import page
from altalign.train.run.ranks import Ranks, joined
from altalign.train.settings.nlip import OF_MIXTURE

_BATCHES_OF_A_PART = 16  # that are measured before they are written: what a stop costs
_ROWS = 1024  # of logits in memory at a time


def measure(run: str, *, step: int | None = None, batch: int = 0) -> int:
    """Measure a training run, write its `noise/losses.parquet`, and show both in its report; gives the exit code.

    Raises UsageError: there is no such run; UnreadableError: no image can be decoded.
    """
    trained = encoders.trained(run, step=step)
    with joined(trained.config.loop.device) as ranks:
        of_trained(trained, ranks, batch=batch)
    return 0


def of_trained(trained: Trained, ranks: Ranks, *, batch: int = 0) -> None:
    """The same for a checkpoint that is open. A collective."""
    config, model = trained.config, trained.model.to(ranks.device)
    data = prepared(config, ranks, say=terminal.stderr().print)
    place, (keys, numbers) = table_of(config), in_order(data.samples)
    basis = {
        "checkpoint": trained.digest,
        "step": trained.step,
        "keys": sha256(keys.tobytes()).hexdigest(),
        "batch": batch or config.loop.global_batch,
        "mixture": config.noise.model_dump(include=OF_MIXTURE),
    }
    with torch.no_grad():
        if storage.read_json(mark_of(config)).get("asked") != basis or not storage.exists(place):
            of_rank = Encoders(config, model, trained.tokenizer, Ranks(0, 1, ranks.device))
            # of equal size, as near to that of the settings as it goes, none larger than 1.5 of it
            batches = max(1, round(len(numbers) / basis["batch"]))
            bounds = [number * len(numbers) // batches for number in range(batches + 1)]

            def losses(first: int, after: int, advance: Callable[[int], None]) -> pa.Table:
                some = [bound for bound in bounds if first <= bound <= after]
                measured = list[Losses]()
                for begin, end in pairwise(some):
                    measured.append(losses_of(of_rank, data.samples, numbers[begin:end]))
                    advance(end - begin)
                return pa.table({"loss": np.concatenate(measured)})

            of_parts = [*bounds[:-1:_BATCHES_OF_A_PART], bounds[-1]]
            parts = by_key.Making(place, basis, ranks, "measuring").parts(losses, of_parts)
            if ranks.is_first:
                tables = [pq.read_table(pa.BufferReader(storage.read_bytes(part))) for part in parts]
                values = pa.concat_tables(tables)["loss"].to_numpy()
                is_known = ~np.isnan(values)
                if not is_known.any():
                    why = f"none of {len(keys):,} images can be decoded; look at the shards"
                    raise UnreadableError(f"{config.run.folder}: {why}")
                mixture, eps = noise_estimates.fitted(values[is_known], config.noise), np.zeros(len(values), np.float32)
                eps[is_known] = mixture.noise(values[is_known])
                noise_estimates.write(place, keys, values, eps)
                storage.write_json(mark_of(config), {"asked": basis, "mixture": asdict(mixture)})
                storage.delete(by_key.parts_of(place))
            ranks.wait()
        if ranks.is_first:
            measured, out = known(config, data.samples), terminal.stdout()
            assert measured is not None
            noisy, pairs = int((measured.eps > 0.5).sum()), len(measured.numbers)
            what = "their losses do not fall into two groups, and none is held for noisy"
            if not measured.mixture.is_one:
                low, high = (f"{mean:.3f}" for mean in measured.mixture.means)
                what = f"{noisy:,} more likely noisy than clean ({noisy / pairs:.1%}); mean losses {low} and {high}"
            lost = int(np.isnan(measured.losses).sum())
            undecodable = f"; {lost:,} images cannot be decoded" if lost else ""
            out.print(f"{pairs:,} pairs: {what}{undecodable}", soft_wrap=True)
            out.print(f"noise: {terminal.shown(place)}", soft_wrap=True)
            page.write(config, data, model, page.results(config, trained.step))
    ranks.wait()  # none leaves before the first is done


def losses_of(model: Encoders, samples: Samples, numbers: npt.NDArray[np.int64]) -> Losses:
    """The losses of a batch; NaN where the image cannot be decoded, which then is nobody's negative either."""
    threads = max(1, model.config.data.workers)
    embeddings, is_known = list[tuple[torch.Tensor, torch.Tensor]](), list[bool]()
    for some in samples.decoded(model.decode, numbers, size=ENCODED_TOGETHER, threads=threads):
        is_known += some.is_whole
        if captions := list(compress(some.captions, some.is_whole)):
            embeddings.append((model.encode_image(some.pixels).float(), model.encode_text(captions).float()))
    losses = np.full(len(numbers), np.nan, np.float32)
    if embeddings:
        images, texts = (torch.cat(parts) for parts in zip(*embeddings, strict=True))
        losses[is_known] = alone(images, texts, model.model.temperature.value()).cpu().numpy()
    return losses


def alone(images: torch.Tensor, texts: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """NLIP's equations 4 to 6 for each pair (n,) of embeddings (n, d), of this process alone and a block at a time."""
    scaled = images / temperature
    by_text = images.new_full((len(texts),), -torch.inf)
    by_image = torch.empty_like(by_text)
    for first in range(0, len(images), _ROWS):
        logits = scaled[first : first + _ROWS] @ texts.T
        by_image[first : first + _ROWS] = logits.logsumexp(1)
        by_text = torch.logaddexp(by_text, logits.logsumexp(0))
    return (by_image + by_text) / 2 - (scaled * texts).sum(1)
