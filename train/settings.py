"""TrainConfig: every setting of a training run and its one default.

The docstring of a setting is its line in docs/reference/training-settings.md (`make docs`).
Numbers are of the ALIGN paper (sections 4 to 6) unless marked "ours".
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from altalign.settings import Settings

LARGEST = 2**63 - 1  # what TOML and Arrow hold
LARGEST_FACTOR = 1e30  # products of two are still near what float32 holds
LARGEST_BATCH = 2**30  # the order of a batch is in memory
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
BatchSize = Annotated[int, Field(ge=1, le=LARGEST_BATCH)]
Share = Annotated[float, Field(ge=0, lt=1)]
AtLeast0 = Annotated[float, Field(ge=0, le=LARGEST_FACTOR)]
Above0 = Annotated[float, Field(gt=0, le=LARGEST_FACTOR)]
Excluded = Literal["bias", "norm", "batch_norm"]
Epsilon = Annotated[float, Field(ge=1e-30, le=LARGEST_FACTOR)]  # less is 0 in float32
Factor = Annotated[float, Field(ge=0, le=100)]
Path = Annotated[str, Field(min_length=1)]
Architecture = Literal[
    "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "l2",
    "vit_ti16", "vit_s16", "vit_s32", "vit_b16", "vit_b32", "vit_l16",
]  # fmt: skip


class RunSettings(Settings):
    """Where a training run is written."""

    folder: Path = "runs/train-demo"
    """Where the run is written: a local folder."""
    seed: Whole = 0
    """Of the order of samples, augmentation, dropout and the towers' first weights."""


class DataSettings(Settings):
    """What is trained on, and in which order (section 4.1)."""

    runs: list[Path] = Field(default_factory=lambda: ["runs/demo"])
    """Finished run folders of `altalign curate`: local paths, `s3://…` or `gs://…`. `[]`: tars and tables alone."""
    tars: list[Path] = Field(default_factory=list)  # ours
    """Globs of WebDataset tars of others: images with `.txt` or `.json`. They have no lineage, and are packed once."""
    tables: list[Path] = Field(default_factory=list)  # ours
    """Globs of Parquet tables of images and captions, likewise."""
    image_column: str = "image"
    """`tables`: column of the image's bytes."""
    caption_column: str = "caption"
    """`tables`: column of the caption, or of a list of them."""
    held_out: Share = 0.0  # ours
    """Share of the images, chosen by the hash of `image_id`, that training never sees: pairs for evaluation."""
    pairs: Whole = 0
    """Train on exactly this many pairs, chosen by a hash: fewer are a subset of more (table 10). `0`: all."""
    source_weights: dict[str, AtLeast0] = Field(default_factory=dict)  # ours
    """Weights of sources by name, divided by their sum: shares of an epoch. Empty: in proportion to sizes."""
    sampling: Literal["random", "sequential", "one_source"] = "random"
    """Sources mixed at random, one after another in each epoch, or a global batch of one source each (ZeroVL, 3.1)."""
    same_image_once_a_batch: bool = False  # ours
    """A global batch has an image once: a pair of an image that is in it already waits for the next batch."""
    resize_px: Positive = 346
    """An image is resized to a square of this side; its aspect ratio is not kept."""
    crop_px: Positive = 289
    """Side of the random crop of that. Not above `resize_px`."""
    crop_area_at_least: Share = 0.0
    """Above 0: crop at random this share of the area or more, of an aspect ratio from 3:4 to 4:3, and resize that to
    `crop_px` (ZeroVL, 2.2: 0.6). `0`: ALIGN's crop."""
    flip: bool = True
    """Flip half of the images from left to right."""
    auto_augment: bool = False
    """Augment by AutoAugment's policy of ImageNet (ZeroVL, section 5.1), as torchvision has it."""
    word_corruption: Share = 0.0
    """Share of a caption's words that are corrupted in training (ZeroVL, 2.2: 0.2): half of them masked, a tenth
    replaced by others, the rest deleted."""
    workers: Annotated[Whole, Field(le=1024)] = 2  # ours
    """Processes that decode, per process that trains; `0`: that process itself. The order of samples stays the same."""

    @model_validator(mode="after")
    def _crop_fits(self) -> Self:
        if self.crop_px > self.resize_px:
            raise ValueError(
                f"crop_px ({self.crop_px}) is above resize_px ({self.resize_px}); lower the one or raise the other"
            )
        if self.sampling != "random" and self.same_image_once_a_batch:
            raise ValueError(
                f'same_image_once_a_batch is true, and sampling = "{self.sampling}": it goes with "random" alone; '
                "give one of both"
            )
        if not (self.runs or self.tars or self.tables):
            raise ValueError("runs, tars and tables are empty; give what is to be trained on")
        if self.source_weights and not sum(self.source_weights.values()):
            raise ValueError("source_weights are all 0: nothing would be drawn; give one source a weight above 0")
        return self


class TokenizerSettings(Settings):
    """WordPiece, trained on the captions of the shards (section 5)."""

    file: str = ""
    """A `tokenizer.json` to take instead of training one: of an earlier run, say."""
    vocabulary_size: Annotated[Positive, Field(ge=16, le=10_000_000)] = 100_000
    """Word pieces with special tokens; 250,000 in the multilingual model (section 8). Few captions give fewer."""
    lower_case: bool = True  # the paper's sample captions are lower case (figures 1 and 2)
    """Lower the case of captions."""
    strip_accents: bool = False  # ours
    """Take accents off letters."""
    tokens_at_most: Annotated[Positive, Field(ge=3)] = 64
    """Word pieces of a caption, `[CLS]` and `[SEP]` among them; longer ones are cut."""
    captions_at_most: Whole = 20_000_000  # ours
    """Train the vocabulary on at most this many captions, chosen by the hash of their keys. `0`: all."""


class ImageTowerSettings(Settings):
    """EfficientNet with global pooling, without the 1x1 convolution of its head (section 5), or ZeroVL's ViT."""

    architecture: Architecture = "l2"
    """EfficientNet-B0 to B7, or L2 (the main model); or a ViT by size and side of its patches (ZeroVL: `vit_b16`)."""
    width: Factor = 0.0
    """Factor of the channels, in place of the architecture's own; `0`: its own. For small trials. ViT: of its heads."""
    depth: Factor = 0.0
    """Factor of the blocks of each stage, in place of the architecture's own; `0`: its own. ViT: of its blocks."""
    positions_px: Positive = 224
    """ViT: side of the images that its positions are of. For another `crop_px` they are interpolated."""
    token_drop: Share = 0.0
    """ViT: share of an image's patches that training leaves out, drawn for each pair and step (ZeroVL, 4.2: 0.25)."""
    embedding_width: Whole = 0
    """Width of embeddings. `0`: the image tower's own (B7: 640, L2: 1,376); another adds a linear layer."""
    padding: Literal["same", "keras"] = "same"
    """Padding of strided convolutions on odd sides: `same` like TensorFlow; `keras` like Keras without a size."""
    batch_norm: Literal["ghost", "local", "sync", "frozen"] = "ghost"
    """Statistics of groups of `ghost_group` images, of a chunk, of a chunk on all devices, or fixed as they are."""
    ghost_group: Annotated[Positive, Field(ge=2)] = 16
    """Images of a group: the paper's cores had 16 pairs each."""
    batch_norm_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """How much of the running statistics stays at each step, as Keras counts it."""
    batch_norm_epsilon: Epsilon = 1e-3
    """Added to variances."""
    drop_path: Share = 0.0  # the paper does not say
    """Chance that a block of the last stage is skipped; it grows from 0 in proportion to depth."""
    weights: str = ""
    """Weights (safetensors) to start from: a file, or a folder of open_clip or AlignModel. Empty: from scratch."""
    frozen: bool = False
    """Do not train this tower."""

    @property
    def is_vit(self) -> bool:
        """Whether it is a ViT, which has patches and no batch norm."""
        return self.architecture.startswith("vit_")

    @property
    def has_groups(self) -> bool:
        """Whether batch norm takes the statistics of groups."""
        return not self.is_vit and self.batch_norm == "ghost"

    @model_validator(mode="after")
    def _tokens_are_there_to_drop(self) -> Self:
        if self.token_drop and not self.is_vit:
            raise ValueError(
                f'token_drop is {self.token_drop:g}, and architecture = "{self.architecture}" has no tokens; give 0, '
                "or a ViT"
            )
        return self


class TextTowerSettings(Settings):
    """BERT, the last layer's [CLS], then a linear layer to the width of the embeddings (section 5)."""

    layers: Annotated[Positive, Field(le=1_000)] = 24
    """Layers: Mini 4, Medium 8, Base 12, Large 24."""
    width: Positive = 1024
    """Width of the hidden states: Mini 256, Medium 512, Base 768, Large 1,024."""
    heads: Positive = 16
    """Attention heads: Mini 4, Medium 8, Base 12, Large 16."""
    dropout: Share = 0.1
    """Of hidden states and attention, as in BERT."""
    weights: str = ""
    """Weights (safetensors) to start from: a file, or a folder of open_clip or AlignModel. Empty: from scratch."""
    frozen: bool = False
    """Do not train this tower."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width ({self.width}) is no multiple of heads ({self.heads}); give another number of heads"
            )
        return self


class LossSettings(Settings):
    """Normalised softmax over the global batch in both directions (section 4.1)."""

    directions: Literal["sum", "mean"] = "sum"
    """Image-to-text and text-to-image are added (the paper), or averaged."""
    label_smoothing: Share = 0.1
    """Target of the match is 1 - this + this/N, of each other candidate this/N."""
    temperature: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    """Where the temperature starts, or stays."""
    temperature_learned: bool = True
    """Learn the temperature (its logarithm, without weight decay or trust ratio)."""
    temperature_at_least: Annotated[float, Field(ge=1e-6, le=1e6)] = 1e-6  # ZeroVL's code: 0.001
    """A learned temperature that a step takes below this is set to it."""
    temperature_at_most: Annotated[float, Field(ge=1e-6, le=1e6)] = 1e6  # ZeroVL's code: 0.5
    """A learned temperature that a step takes above this is set to it."""
    negatives: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the global batch's other pairs that are negatives (table 8: 1, 0.5, 0.25): the next in a circle."""
    mixup: AtLeast0 = 0.0
    """Coin-flipping mixup (ZeroVL, 3.2): alpha of Beta(alpha, alpha), of which a batch's lambda is drawn (0.1). `0`:
    off."""
    mixup_of: Literal["coin", "images", "texts"] = "coin"
    """What is mixed: pixels of images, features of texts, or what a coin says at each step."""
    mixup_group: Annotated[Positive, Field(ge=2)] = 16  # ours
    """Pairs of the global batch that are mixed among each other: the first with the last, and so on."""
    block: Positive = 2048  # ours
    """Rows and columns of the logits that are in memory at a time."""

    @model_validator(mode="after")
    def _temperature_is_in_its_range(self) -> Self:
        if not self.temperature_at_least <= self.temperature <= self.temperature_at_most:
            raise ValueError(
                f"temperature ({self.temperature:g}) is not from temperature_at_least ({self.temperature_at_least:g}) "
                f"to temperature_at_most ({self.temperature_at_most:g}); change one of them"
            )
        return self


class OptimizerSettings(Settings):
    """LAMB (section 5), and what fine-tuning and probes need."""

    name: Literal["lamb", "lars", "adamw", "sgd"] = "lamb"
    """The method."""
    weight_decay: AtLeast0 = 1e-5
    """Of the parameters that decay."""
    beta1: Share = 0.9
    """LAMB and AdamW: decay of the first moment."""
    beta2: Share = 0.999
    """LAMB and AdamW: decay of the second moment."""
    epsilon: Epsilon = 1e-6
    """LAMB, LARS and AdamW: added to divisors."""
    momentum: Share = 0.9
    """SGD and LARS."""
    # COYO-ALIGN excludes batch norm alone, from both
    decay_excludes: list[Excluded] = Field(default_factory=lambda: ["norm"])
    """Parameters without weight decay: `bias`, `norm` (every norm), `batch_norm`. The temperature never decays."""
    # by trial on the demo, docs/concepts/training.md; with a ratio, shifts that begin at 0 stay there
    trust_excludes: list[Excluded] = Field(default_factory=lambda: ["norm"])
    """LAMB and LARS: the same of parameters whose step is not scaled by their own norm. The temperature's never is."""
    clip_norm: AtLeast0 = 0.0  # the paper does not say
    """Scale gradients so that their norm together is not above this. `0`: off."""
    rate_factors: dict[
        Literal["image_tower", "image_projection", "text_tower", "text_projection", "temperature"], AtLeast0
    ] = Field(default_factory=dict)
    """Factor of the learning rate of each part of the model; 1 where none is given."""


class ScheduleSettings(Settings):
    """The learning rate over the steps (section 5)."""

    steps: Annotated[Positive, Field(le=10**12)] = 1_200_000
    """Steps of the whole run, warm-up among them."""
    peak: Above0 = 1e-3
    """The rate after the warm-up."""
    warmup_steps: Whole = 10_000
    """Steps over which it grows from 0, in a line."""
    decay: Literal["linear", "cosine", "step", "constant"] = "linear"
    """How it falls to `floor` until the last step; `step`: by `factor` every `every` steps."""
    floor: AtLeast0 = 0.0
    """Where it ends (not `step`)."""
    every: Positive = 30_000
    """`step`: steps between falls."""
    factor: Above0 = 0.2
    """`step`: what the rate is multiplied with."""
    reference_batch: Whole = 0
    """Linear scaling (ZeroVL, 4.1): rates are for a global batch of so many pairs, and in proportion for another. `0`:
    they are as given."""

    @model_validator(mode="after")
    def _warmup_ends(self) -> Self:
        if self.warmup_steps > self.steps:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) is above steps ({self.steps}); lower the one or raise the other"
            )
        if self.floor > self.peak:
            raise ValueError(f"floor ({self.floor:g}) is above peak ({self.peak:g}); lower the one or raise the other")
        return self


class LoopSettings(Settings):
    """How a step is computed, and what is kept on the way (ours but for the batch)."""

    global_batch: Annotated[BatchSize, Field(ge=2)] = 16_384
    """Pairs of a step, over all devices (section 5)."""
    chunk: Positive = 512
    """Pairs in the towers of a device at a time. A step of more runs them twice, for the same gradient."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU where there is one."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the towers' arithmetic. Weights, embeddings and loss are float32."""
    activation_checkpointing: bool = False
    """Compute activations again instead of keeping them: less memory, a third more time."""
    compile: bool = False
    """Compile the towers with `torch.compile`."""
    log_every: Positive = 10
    """Steps between lines of metrics."""
    evaluate_every: Whole = 0
    """Steps between evaluations. `0`: after the last one alone."""
    checkpoint_every: Positive = 1_000
    """Steps between checkpoints; there is one after the last step, and one when the run is told to stop."""
    keep_checkpoints: Positive = 3
    """How many of the newest are kept."""


class RetrievalSettings(Settings):
    """A set of images and captions to search in both directions."""

    name: Path
    """What its metrics are called: `retrieval/NAME`."""
    kind: Literal["held_out", "run", "webdataset", "parquet"] = "held_out"
    """`held_out`: pairs that `[data] held_out` keeps back; `run`: pairs of other runs; tars; Parquet tables."""
    paths: list[Path] = Field(default_factory=list)
    """Run folders, or globs of tars or tables. `held_out` has none."""
    image_column: str = "image"
    """Parquet: column of the image's bytes."""
    caption_column: str = "caption"
    """Parquet: column of the caption, or of a list of them. Rows of one image's bytes are one image."""
    images_at_most: Whole = 0
    """Take this many images, chosen by the hash of their identity. `0`: all."""
    captions_at_most: Whole = 0
    """Take the first so many captions of an image: with 5, MSCOCO's 5K test images have 25,000. `0`: all."""
    repeated_captions: bool = True
    """Take a caption as often as an image has it, as published protocols do. `false`: once."""
    shared_captions: Literal["own", "all"] = "own"
    """A caption that several images have is right for its `own` (published protocols), or for `all` of them."""

    @model_validator(mode="after")
    def _has_paths(self) -> Self:
        if (self.kind == "held_out") == bool(self.paths):
            raise ValueError(
                'held_out takes no paths: they are those of [data] runs; leave them out, or give kind = "run"'
                if self.paths
                else "give paths"
            )
        return self


class EvaluationSettings(Settings):
    """What the model is measured on."""

    retrieval: list[RetrievalSettings] = Field(default_factory=list)
    """Sets for image-text retrieval (section 5.1), one `[[evaluation.retrieval]]` each."""
    resize_px: Whole = 0
    """Side of the square before the central crop. `0`: as in training."""
    crop_px: Whole = 0
    """Side of the central crop. `0`: as in training."""
    keep_aspect_ratio: bool = False
    """Resize the short side, and not to a square, before the central crop (ZeroVL)."""
    batch: Positive = 256
    """Images, or captions, that are encoded at a time."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [chosen.name for chosen in self.retrieval]
        if len(set(names)) != len(names):
            raise ValueError(f"two sets of one name among {', '.join(names)}; give each its own")
        return self


class TrainConfig(Settings):
    """A training run."""

    run: RunSettings = RunSettings()
    data: DataSettings = DataSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    image_tower: ImageTowerSettings = ImageTowerSettings()
    text_tower: TextTowerSettings = TextTowerSettings()
    loss: LossSettings = LossSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    loop: LoopSettings = LoopSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @property
    def rate_scale(self) -> float:
        """What linear scaling multiplies the learning rate with."""
        return self.loop.global_batch / (self.schedule.reference_batch or self.loop.global_batch)

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        tower, chunk = self.image_tower, self.loop.chunk
        self._check_patches()
        if tower.has_groups and chunk % tower.ghost_group and chunk < self.loop.global_batch:
            raise ValueError(
                f"[loop] chunk ({chunk}) is no multiple of [image_tower] ghost_group ({tower.ghost_group}); give a "
                "multiple"
            )
        if self.loss.mixup and self.loss.negatives < 1:
            raise ValueError(
                f"[loss] mixup = {self.loss.mixup:g} with negatives = {self.loss.negatives:g}: a partner may be no "
                "candidate; give negatives = 1"
            )
        for name, size in (("chunk", chunk), ("global_batch", self.loop.global_batch)):
            if self.loss.mixup and size % self.loss.mixup_group:
                raise ValueError(
                    f"[loop] {name} ({size}) is no multiple of [loss] mixup_group ({self.loss.mixup_group}); give a "
                    "multiple"
                )
        if any(chosen.kind == "held_out" for chosen in self.evaluation.retrieval) and not self.data.held_out:
            raise ValueError(
                "[[evaluation.retrieval]] kind = held_out, and [data] held_out = 0: no pair is held out; give a share"
            )
        resize, crop = self.evaluation.resize_px or self.data.resize_px, self.evaluation.crop_px or self.data.crop_px
        if crop > resize:
            raise ValueError(
                f"[evaluation] crop_px ({crop}) is above resize_px ({resize}; 0: as in [data]); lower the one or raise "
                "the other"
            )
        return self

    def _check_patches(self) -> None:
        if not self.image_tower.is_vit:
            return
        patch = int(self.image_tower.architecture[-2:])
        sides = {
            "[data] crop_px": self.data.crop_px,
            "[evaluation] crop_px": self.evaluation.crop_px,
            "[image_tower] positions_px": self.image_tower.positions_px,
        }
        for name, side in sides.items():
            if side % patch:
                raise ValueError(
                    f"{name} ({side}) is no multiple of the patches of {self.image_tower.architecture} ({patch}); give "
                    "a multiple"
                )
