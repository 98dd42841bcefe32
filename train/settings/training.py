"""TrainConfig: every setting of a training run and its one default.

The docstring of a setting is its line in docs/reference/training-settings.md (`make docs`).
Numbers are of the ALIGN paper (sections 4 to 6) unless marked "ours".
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from altalign.settings.common import Settings
from altalign.train.settings.data import DataSettings, TokenizerSettings
from altalign.train.settings.evaluation import ClassificationSettings, EvaluationSettings
from altalign.train.settings.nlip import CaptionerSettings, NoiseSettings, PhaseSettings, ReconstructionSettings
from altalign.train.settings.removed import without_removed
from altalign.train.settings.types import (
    Above0,
    AtLeast0,
    BatchSize,
    Device,
    Epsilon,
    Excluded,
    Factor,
    Part,
    Path,
    Positive,
    Share,
    Whole,
)

Precision = Literal["float32", "tf32", "bfloat16"]
OF_RUN = "run:"  # before the folder of a training run, whose newest checkpoint is meant
Architecture = Literal[
    "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "l2",
    "vit_ti16", "vit_s16", "vit_s32", "vit_b16", "vit_b32", "vit_l16",
]  # fmt: skip


class RunSettings(Settings):
    """Where a training run is written."""

    folder: Path = "runs/train-demo"
    """Where the run is written: a local folder, `s3://…` or `gs://…`."""
    seed: Whole = 0
    """Of the order of samples, augmentation, dropout and the towers' first weights."""
    start: str = ""  # ours
    """`run:FOLDER`: a training run of the same model, whose newest weights and moments this one goes on from with
    settings of its own. Empty: from scratch, or from `weights` of the towers."""


class ImageTowerSettings(Settings):
    """EfficientNet with global pooling, without the 1x1 convolution of its head (section 5), or ZeroVL's ViT."""

    architecture: Architecture = "l2"
    """EfficientNet-B0 to B7, or L2 (the main model); or a ViT by size and side of its patches (ZeroVL: `vit_b16`)."""
    width: Factor = 0.0
    """Factor of the channels, in place of the architecture's own; `0`: its own. For small trials. ViT: of its heads."""
    depth: Factor = 0.0
    """Factor of the blocks of each stage, in place of the architecture's own; `0`: its own. ViT: of its blocks."""
    normalisation: Literal["range", "imagenet"] = "range"
    """Pixels from -1 to 1, or by ImageNet's mean and deviation, which weights of a ViT may want (DeiT's and MAE's)."""
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
    drop_path: Share = 0.0  # the paper does not say
    """Chance that a block of the last stage is skipped; it grows from 0 in proportion to depth."""
    weights: str = ""
    """Weights (safetensors) to start from: a file, a folder of open_clip or AlignModel, or `run:FOLDER`, the newest
    checkpoint of a training, with the layer after the tower. Empty: from scratch."""
    frozen: bool = False
    """Do not train this tower; nor the layer after it, where it comes from a run."""

    @property
    def is_vit(self) -> bool:
        """Whether it is a ViT, which has patches and no batch norm."""
        return self.architecture.startswith("vit_")

    @property
    def has_groups(self) -> bool:
        """Whether batch norm takes the statistics of groups."""
        return not self.is_vit and self.batch_norm == "ghost"

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        if self.normalisation == "imagenet" and not self.is_vit:
            raise ValueError(f'normalisation = "imagenet", and {self.architecture} is no ViT; give "range", or a ViT')
        if self.token_drop and not self.is_vit:
            raise ValueError(
                f'token_drop is {self.token_drop:g}, and architecture = "{self.architecture}" has no tokens; give 0, '
                "or a ViT"
            )
        return self


class TextTowerSettings(Settings):
    """BERT, the last layer's [CLS], then a linear layer to the width of the embeddings (section 5)."""

    architecture: Literal["bert", "bart"] = "bert"
    """BERT; or the encoder of BART, which a captioner needs (NLIP)."""
    layers: Annotated[Positive, Field(le=1_000)] = 24
    """Layers: Mini 4, Medium 8, Base 12, Large 24."""
    width: Positive = 1024
    """Width of the hidden states: Mini 256, Medium 512, Base 768, Large 1,024."""
    heads: Positive = 16
    """Attention heads: Mini 4, Medium 8, Base 12, Large 16."""
    dropout: Share = 0.1
    """Of hidden states and attention, as in BERT."""
    weights: str = ""
    """Weights (safetensors) to start from: a file, a folder of BERT, open_clip or AlignModel, or `run:FOLDER`, as for
    the image tower. Empty: from scratch."""
    frozen: bool = False
    """Do not train this tower; nor the layer after it, where it comes from a run."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width ({self.width}) is no multiple of heads ({self.heads}); give another number of heads"
            )
        return self


class LossSettings(Settings):
    """Normalised softmax over the global batch in both directions (section 4.1)."""

    weight: AtLeast0 = 1.0
    """Its factor beside the losses of `[reconstruction]` and `[captioner]` (NLIP: beta, 1)."""
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
    """LAMB and AdamW: decay of the first moment; SGD and LARS: the momentum."""
    beta2: Share = 0.999
    """LAMB and AdamW: decay of the second moment."""
    epsilon: Epsilon = 1e-6
    """LAMB, LARS and AdamW: added to divisors."""
    # COYO-ALIGN excludes batch norm alone, from both
    decay_excludes: list[Excluded] = Field(default_factory=lambda: ["norm"])
    """Parameters without weight decay: `bias`, `norm` (every norm), `batch_norm`. The temperature never decays."""
    # by trial on the demo, docs/concepts/training.md; with a ratio, shifts that begin at 0 stay there
    trust_excludes: list[Excluded] = Field(default_factory=lambda: ["norm"])
    """LAMB and LARS: the same of parameters whose step is not scaled by their own norm. The temperature's never is."""
    clip_norm: AtLeast0 = 0.0  # the paper does not say
    """Scale gradients so that their norm together is not above this. `0`: off."""
    rate_factors: dict[Part, AtLeast0] = Field(default_factory=dict)
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


def _of_words(chunk: object) -> object:
    return 0 if chunk == "auto" else chunk


class LoopSettings(Settings):
    """How a step is computed, and what is kept on the way (ours but for the batch)."""

    global_batch: Annotated[BatchSize, Field(ge=2)] = 16_384
    """Pairs of a step, over all devices (section 5)."""
    chunk: Annotated[Whole, BeforeValidator(_of_words)] = 512
    """Pairs in the towers of a device at a time. A step of more runs them twice, for the same gradient. `0`, or
    `"auto"`: the global batch, or its half, its quarter and so on, whatever first fits into 90 % of a GPU's memory."""
    device: Device = "auto"
    """`auto`: a GPU where there is one."""
    precision: Precision = "bfloat16"
    """Of the towers' arithmetic. Weights, embeddings and loss are float32. `tf32`: float32, and on a GPU its products
    are of factors with 10 bits after the first."""
    recompute: Literal["none", "large", "all"] = "none"
    """Activations that are computed again instead of kept. `large`: those of EfficientNet's first two stages, whose
    maps are largest; `all`: of both towers, for a third more time."""
    speed: Literal["plain", "compiled", "recorded"] = "plain"
    """How the towers run, which changes nothing of what is learned. `compiled`: their blocks by `torch.compile`, and
    the first step takes minutes longer. `recorded`: the image tower's passes on a GPU as CUDA graphs, each started by
    one call, which waits less for the processor where chunks are small; all chunks are of one size."""
    sharded: bool = False
    """Spread weights, gradients and moments over the ranks (FSDP2), for models that do not fit. Ranks gather each block
    when it computes: more communication, the same gradients."""
    timeout_s: Positive = 1800
    """Seconds that a rank waits for the others in a step; then all end, and those that were not heard are named."""
    log_every: Positive = 10
    """Steps between lines of metrics."""
    wandb_project: str = ""
    """Project of Weights & Biases that settings and metrics are sent to as well (extra `wandb`); with
    `WANDB_MODE=offline` they stay in the run's folder. Empty: none."""
    evaluate_every: Whole = 0
    """Steps between evaluations. `0`: after the last one alone."""
    checkpoint_every: Positive = 1_000
    """Steps between checkpoints; there is one after the last step, and one when the run is told to stop."""
    keep_checkpoints: Positive = 3
    """How many of the newest are kept."""


class TrainConfig(Settings):
    """A training run."""

    run: RunSettings = RunSettings()
    data: DataSettings = DataSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    image_tower: ImageTowerSettings = ImageTowerSettings()
    text_tower: TextTowerSettings = TextTowerSettings()
    loss: LossSettings = LossSettings()
    noise: NoiseSettings = NoiseSettings()
    reconstruction: ReconstructionSettings = ReconstructionSettings()
    captioner: CaptionerSettings = CaptionerSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    loop: LoopSettings = LoopSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    classification: ClassificationSettings = ClassificationSettings()
    phases: list[PhaseSettings] = Field(default_factory=list)
    """Trainings that follow one another, one `[[phases]]` each (NLIP, figure 3). None: one training."""

    @property
    def rate_scale(self) -> float:
        """What linear scaling multiplies the learning rate with."""
        return self.loop.global_batch / (self.schedule.reference_batch or self.loop.global_batch)

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, values: Any) -> Any:
        return without_removed(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        self._check_data()
        self._check_image_tower()
        self._check_loss()
        self._check_loop()
        self._check_classification()
        self._check_noise()
        self._check_decoders()
        return self

    def _check_data(self) -> None:
        data, evaluation = self.data, self.evaluation
        if not (data.runs or data.tars or data.tables):
            raise ValueError("[data] runs, tars and tables are empty; give what is to be trained on")
        if any(chosen.kind == "held_out" for chosen in evaluation.retrieval) and not data.held_out:
            raise ValueError(
                "[[evaluation.retrieval]] kind = held_out, and [data] held_out = 0: no pair is held out; give a share"
            )
        resize, crop = evaluation.resize_px or data.resize_px, evaluation.crop_px or data.crop_px
        if crop > resize:
            raise ValueError(
                f"[evaluation] crop_px ({crop}) is above resize_px ({resize}; 0: as in [data]); lower the one or raise "
                "the other"
            )

    def _check_image_tower(self) -> None:
        tower, chunk = self.image_tower, self.loop.chunk
        if tower.is_vit:
            patch = int(tower.architecture[-2:])
            sides = {
                "[data] crop_px": self.data.crop_px,
                "[evaluation] crop_px": self.evaluation.crop_px,
                "[image_tower] positions_px": tower.positions_px,
            }
            for name, side in sides.items():
                if side % patch:
                    raise ValueError(
                        f"{name} ({side}) is no multiple of the patches of {tower.architecture} ({patch}); give a "
                        "multiple"
                    )
        elif not chunk and tower.batch_norm in ("local", "sync"):
            raise ValueError(
                f'[loop] chunk = "auto", and [image_tower] batch_norm = "{tower.batch_norm}" takes the statistics of '
                "chunks: what is learned would depend on memory; give a number"
            )
        if tower.has_groups and chunk % tower.ghost_group and chunk < self.loop.global_batch:
            raise ValueError(
                f"[loop] chunk ({chunk}) is no multiple of [image_tower] ghost_group ({tower.ghost_group}); give a "
                "multiple"
            )

    def _check_loss(self) -> None:
        loss = self.loss
        if not loss.mixup:
            return
        if loss.negatives < 1:
            raise ValueError(
                f"[loss] mixup = {loss.mixup:g} with negatives = {loss.negatives:g}: a partner may be no candidate; "
                "give negatives = 1"
            )
        for name, size in (("chunk", self.loop.chunk), ("global_batch", self.loop.global_batch)):
            if size % loss.mixup_group:
                raise ValueError(
                    f"[loop] {name} ({size}) is no multiple of [loss] mixup_group ({loss.mixup_group}); give a multiple"
                )

    def _check_loop(self) -> None:
        loop, tower = self.loop, self.image_tower
        if loop.recompute == "large" and tower.is_vit:
            raise ValueError(f'[loop] recompute = "large": {tower.architecture} has no stages; give "all", or "none"')
        if loop.sharded:
            others = {'speed = "compiled"': loop.speed == "compiled"}
            others["[classification] train"] = bool(self.classification.train)
            _refuse_with("[loop] sharded = true", others)
        if loop.speed == "recorded":
            others = {
                f'recompute = "{loop.recompute}"': loop.recompute != "none",
                "sharded = true": loop.sharded,
                'chunk = "auto"': not loop.chunk,
                "[image_tower] frozen = true": tower.frozen,
                '[image_tower] batch_norm = "sync"': not tower.is_vit and tower.batch_norm == "sync",
            }
            _refuse_with('[loop] speed = "recorded"', others)

    def _check_classification(self) -> None:
        chosen = self.classification
        if bool(chosen.train) != bool(chosen.test):
            raise ValueError("[classification] has train or test, and not both; give the other")
        if chosen.train and not self.loop.chunk:
            raise ValueError('[loop] chunk = "auto" with [classification] train: give a number of images')
        if chosen.train and (self.image_tower.token_drop or self.evaluation.retrieval):
            raise ValueError(
                "[classification] train, and [image_tower] token_drop or [[evaluation.retrieval]], which are of "
                "captions; leave them out"
            )

    def _check_noise(self) -> None:
        noise = self.noise
        if self.phases:  # each is checked by itself
            return
        if noise.captions and not noise.estimates:
            raise ValueError("[noise] captions without estimates: nobody knows which pairs are noisy; give both")
        if not noise.smoothing:
            return
        if not noise.estimates:
            raise ValueError(
                f"[noise] smoothing = {noise.smoothing:g} without estimates; give what `altalign nlip noise` made of a "
                "training run"
            )
        if self.loss.label_smoothing or self.loss.mixup:
            raise ValueError("[noise] smoothing with [loss] label_smoothing or mixup: the loss takes one; give 0")

    def _check_decoders(self) -> None:
        if self.reconstruction.weight and not self.image_tower.token_drop:
            raise ValueError("[reconstruction] weight without [image_tower] token_drop: no patch is masked; give 0.5")
        if not self.captioner.weight:
            return
        if self.text_tower.architecture != "bart" or not self.image_tower.is_vit:
            raise ValueError('[captioner] weight: it wants [text_tower] architecture = "bart", and a ViT; give both')
        if self.loss.mixup or self.data.word_corruption:
            raise ValueError("[captioner] weight with [loss] mixup or [data] word_corruption; give 0 for both")


def _refuse_with(setting: str, others: Mapping[str, bool]) -> None:
    """Refuse a setting beside each other one that is given."""
    for name, is_given in others.items():
        if is_given:
            raise ValueError(f"{setting} with {name}: they do not go together; give one of them")
