"""TrainConfig: every setting of a training run and its one default.

The docstring of a setting is its line in docs/reference/training-settings.md (`make docs`).
Numbers are of the ALIGN paper (sections 4 to 6) unless marked "ours".
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from altalign.settings.common import Settings
from altalign.train.settings.data import ClassificationSettings, DataSettings, EvaluationSettings, TokenizerSettings
from altalign.train.settings.nlip import CaptionerSettings, NoiseSettings, PhaseSettings, ReconstructionSettings
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
    Temperature,
    Whole,
)

Precision = Literal["float32", "tf32", "bfloat16"]
OF_RUN = "run:"  # before the folder of a training run, whose newest checkpoint is meant
Activation = Literal["gelu", "quick_gelu", "gelu_tanh"]
Architecture = Literal[
    "b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "l2",
    "vit_ti16", "vit_s16", "vit_s32", "vit_b16", "vit_b32", "vit_l16",
    "clip_b16", "clip_b32", "clip_l14", "siglip_b16", "siglip_l16",
]  # fmt: skip


class RunSettings(Settings):
    """Where a training run is written."""

    folder: Path = "runs/train-demo"
    """The run's folder: a local path, `s3://…` or `gs://…`."""
    seed: Whole = 0
    """Seed of sample order, augmentation, dropout and first weights."""
    start: str = ""  # ours
    """`run:FOLDER`: go on from the newest weights and moments of a run of the same model, with new settings. Empty:
    from scratch, or from the towers' `weights`.
    """


class ImageTowerSettings(Settings):
    """EfficientNet with global pooling, without the 1x1 convolution of its head (section 5), or ZeroVL's ViT."""

    architecture: Architecture = "l2"
    """EfficientNet-B0 to B7 or L2 (the main model), or a ViT by size and patch side (ZeroVL: `vit_b16`), or that of
    CLIP or SigLIP.
    """
    activation: Activation = "gelu"
    """ViT: `quick_gelu` in OpenAI's CLIP, `gelu_tanh` in SigLIP (open_clip computes it with `gelu`)."""
    width: Factor = 0.0
    """Factor of channels (ViT: heads) for small trials; `0`: the architecture's own."""
    depth: Factor = 0.0
    """Factor of blocks for small trials; `0`: the architecture's own."""
    normalisation: Literal["range", "imagenet", "clip"] = "range"
    """Pixels from -1 to 1 (SigLIP too), or by mean and deviation of ImageNet (weights of DeiT and MAE) or CLIP."""
    positions_px: Positive = 224
    """ViT: image side of the position embeddings, which are interpolated for another `crop_px`."""
    token_drop: Share = 0.0
    """ViT: share of patches that training leaves out, drawn each time (ZeroVL, 4.2: 0.25)."""
    embedding_width: Whole = 0
    """Width of embeddings. `0`: the image tower's own (B7: 640, L2: 1,376); another adds a linear layer."""
    padding: Literal["same", "keras"] = "same"
    """Padding of strided convolutions on odd sides: TensorFlow's, or Keras's without a fixed size."""
    batch_norm: Literal["ghost", "local", "sync", "frozen"] = "ghost"
    """Statistics of `ghost_group` images, of a chunk, of a chunk on all devices, or fixed."""
    ghost_group: Annotated[Positive, Field(ge=2)] = 16
    """Images of a group; the paper's cores had 16 pairs each."""
    batch_norm_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Share of the running statistics kept at each step, as in Keras."""
    weights: str = ""
    """Initial weights: a file, a folder of open_clip, AlignModel, or transformers' CLIP or SigLIP, or `run:FOLDER`, of
    runs, CLIP and SigLIP with the layer after the tower. Empty: from scratch.
    """
    frozen: bool = False
    """Do not train this tower, nor a layer after it that comes from a run."""
    frozen_groups: Whole = 0  # ours
    """Do not train the first groups of layers: the stem (ViT: embeddings), then a block each."""

    @property
    def is_vit(self) -> bool:
        """Whether it is a ViT, which has patches and no batch norm."""
        return self.family in ("vit", "clip", "siglip")

    @property
    def family(self) -> str:
        """What stands before the size: `vit`, `clip`, `siglip`; of an EfficientNet the size."""
        return self.architecture.partition("_")[0]

    @property
    def has_groups(self) -> bool:
        """Whether batch norm takes the statistics of groups."""
        return not self.is_vit and self.batch_norm == "ghost"

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        for name, value, own in (
            ("normalisation", self.normalisation, "range"),
            ("activation", self.activation, "gelu"),
        ):
            if value != own and not self.is_vit:
                raise ValueError(f'{name} = "{value}", and {self.architecture} is no ViT; give "{own}", or a ViT')
        if self.token_drop and not self.is_vit:
            raise ValueError(f"token_drop = {self.token_drop:g}, and {self.architecture} is no ViT; give 0, or a ViT")
        return self


class TextTowerSettings(Settings):
    """BERT, the last layer's [CLS], then a linear layer to the width of the embeddings (section 5)."""

    architecture: Literal["bert", "bart", "clip", "siglip"] = "bert"
    """BERT; BART's encoder, which a captioner needs (NLIP); or the text tower of CLIP or SigLIP."""
    activation: Activation = "gelu"
    """CLIP, SigLIP: as in the image tower."""
    layers: Annotated[Positive, Field(le=1_000)] = 24
    """Layers: Mini 4, Medium 8, Base 12, Large 24."""
    width: Positive = 1024
    """Width of hidden states: Mini 256, Medium 512, Base 768, Large 1,024."""
    heads: Positive = 16
    """Attention heads: Mini 4, Medium 8, Base 12, Large 16."""
    dropout: Share = 0.1
    """Of hidden states and attention, as in BERT."""
    weights: str = ""
    """Initial weights: a file, a folder of BERT, open_clip, AlignModel, or transformers' CLIP or SigLIP, or
    `run:FOLDER`. Empty: from scratch.
    """
    frozen: bool = False
    """Do not train this tower, nor a layer after it that comes from a run."""
    frozen_groups: Whole = 0  # ours
    """Do not train the first groups of layers: the embeddings, then a layer each."""

    @property
    def family(self) -> str:
        """The architecture."""
        return self.architecture

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        if self.activation != "gelu" and self.family not in ("clip", "siglip"):
            raise ValueError(f'activation = "{self.activation}", and {self.family} has "gelu"; leave it out')
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) is no multiple of heads ({self.heads}); give other heads")
        return self


class LossSettings(Settings):
    """Normalised softmax over the global batch in both directions (section 4.1), or SigLIP's sigmoids."""

    name: Literal["softmax", "sigmoid"] = "softmax"
    """`sigmoid`: each image with each text is a decision by itself (SigLIP, 3.2)."""
    weight: AtLeast0 = 1.0
    """Factor beside the losses of `[reconstruction]` and `[captioner]` (NLIP: beta, 1)."""
    directions: Literal["sum", "mean"] = "sum"
    """Add (the paper) or average image-to-text and text-to-image."""
    label_smoothing: Share = 0.1
    """Target of the match is 1 - this + this/N, of every other candidate this/N. Left out with `sigmoid`: 0."""
    temperature: Temperature = 1.0
    """Initial or fixed temperature. Left out with `sigmoid`: 0.1, SigLIP's."""
    bias: float = -10.0
    """`sigmoid`: what is added to the logits at first (SigLIP, 3.2), or always; learned where the temperature is."""
    temperature_learned: bool = True
    """Learn the temperature's logarithm, without weight decay or trust ratio."""
    temperature_range: list[Temperature] = Field(default_factory=lambda: [1e-6, 1e6])
    """Least and largest learned temperature (ZeroVL's code: 0.001 and 0.5)."""
    negatives: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the batch's other pairs that are negatives (table 8: 1, 0.5, 0.25), the next in a circle."""
    mixup: AtLeast0 = 0.0
    """Alpha of the Beta distribution of lambda in coin-flipping mixup (ZeroVL, 3.2: 0.1). `0`: off."""
    mixup_of: Literal["coin", "images", "texts"] = "coin"
    """Mix image pixels, text features, or either by a coin at each step."""
    mixup_group: Annotated[Positive, Field(ge=2)] = 16  # ours
    """Pairs that are mixed among each other: the first with the last, and so on."""

    @model_validator(mode="before")
    @classmethod
    def _begins_as_siglip(cls, values: Any) -> Any:
        is_sigmoid = isinstance(values, Mapping) and values.get("name") == "sigmoid"
        return {"label_smoothing": 0.0, "temperature": 0.1, **values} if is_sigmoid else values

    @model_validator(mode="after")
    def _has_no_candidates(self) -> Self:
        of_candidates = ("label_smoothing", "directions", "negatives", "mixup")
        wrong = next((name for name in of_candidates if getattr(self, name) not in (0, 1, "sum")), "")
        if self.name == "sigmoid" and wrong:
            raise ValueError(f'name = "sigmoid" with {wrong} = {getattr(self, wrong)}, of softmax alone; leave it out')
        return self

    @model_validator(mode="after")
    def _temperature_is_in_its_range(self) -> Self:
        if len(self.temperature_range) != 2:
            raise ValueError(f"temperature_range has {len(self.temperature_range)} numbers; give two, the lower first")
        low, high = self.temperature_range
        if not low <= self.temperature <= high:
            raise ValueError(
                f"temperature ({self.temperature:g}) is not in temperature_range [{low:g}, {high:g}]; change one"
            )
        return self


class OptimizerSettings(Settings):
    """LAMB (section 5), and what fine-tuning and probes need."""

    name: Literal["lamb", "lars", "adamw", "sgd"] = "lamb"
    """The method."""
    weight_decay: AtLeast0 = 1e-5
    """Weight decay."""
    beta1: Share = 0.9
    """Decay of the first moment (LAMB, AdamW); momentum (SGD, LARS)."""
    beta2: Share = 0.999
    """Decay of the second moment (LAMB, AdamW)."""
    epsilon: Epsilon = 1e-6
    """Added to divisors (LAMB, LARS, AdamW)."""
    # COYO-ALIGN excludes batch norm alone, from both
    decay_excludes: list[Excluded] = Field(default_factory=lambda: ["norm"])
    """Parameters without weight decay; `norm` is every norm. The temperature never decays."""
    # by trial on the demo, docs/concepts/training.md; with a ratio, shifts that begin at 0 stay there
    trust_excludes: list[Excluded] = Field(default_factory=lambda: ["norm"])
    """LAMB and LARS: parameters without trust ratio. The temperature never has one."""
    rate_factors: dict[Part, AtLeast0] = Field(default_factory=dict)
    """Factor of the learning rate of each part of the model; default 1."""
    layer_decay: dict[Literal["image_tower", "text_tower"], Annotated[float, Field(gt=0, le=1)]] = Field(
        default_factory=dict
    )
    """By tower, factor of the rate from each layer to the one before it; what follows the last has 1 (BEiT)."""
    average: Share = 0.0  # ours
    """Share of a moving average of the weights that a step keeps, such as 0.9999. `0`: no average."""


class ScheduleSettings(Settings):
    """The learning rate over the steps (section 5)."""

    steps: Annotated[Positive, Field(le=10**12)] = 1_200_000
    """Steps of the whole run, warm-up included."""
    peak: Above0 = 1e-3
    """The rate after the warm-up."""
    warmup_steps: Whole = 10_000
    """Steps of linear growth from 0."""
    decay: Literal["linear", "cosine", "step", "constant"] = "linear"
    """Fall to `floor` by the last step; `step`: to a fifth every `every` steps (5.3)."""
    floor: AtLeast0 = 0.0
    """Final rate (not `step`)."""
    every: Positive = 30_000
    """`step`: steps between falls."""
    reference_batch: Whole = 0
    """Global batch that the rates are for; they scale linearly (ZeroVL, 4.1). `0`: no scaling."""

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
    """Pairs of a step over all devices (section 5)."""
    chunk: Annotated[Whole, BeforeValidator(lambda chunk: 0 if chunk == "auto" else chunk)] = 512
    """Pairs in a device's towers at a time; a larger step runs them twice, for the same gradient. `0`: the whole
    batch; `"auto"`: its half, quarter and so on that fits 90 % of a GPU's memory.
    """
    device: Device = "auto"
    """`auto`: a GPU where there is one."""
    precision: Precision = "bfloat16"
    """Precision of the towers; weights, embeddings and loss are float32. `tf32`: GPU products with 10-bit mantissas.
    """
    recompute: Literal["none", "large", "all"] = "none"
    """Activations computed again instead of kept. `large`: of EfficientNet's first two stages; `all`: of both towers,
    a third more time.
    """
    speed: Literal["plain", "compiled", "recorded"] = "plain"
    """How the towers run, with equal results. `compiled`: by `torch.compile`, which takes minutes. `recorded`: the
    image tower as CUDA graphs, faster for small chunks, all of one size.
    """
    sharded: bool = False
    """Spread weights, gradients and moments over ranks (FSDP2): more communication, equal gradients."""
    timeout_s: Positive = 1800
    """Seconds that a rank waits for others in a step; then all end."""
    log_every: Positive = 10
    """Steps between lines of metrics."""
    wandb_project: str = ""
    """Weights & Biases project for settings and metrics (extra `wandb`). Empty: none."""
    evaluate_every: Whole = 0
    """Steps between evaluations. `0`: only after the last."""
    checkpoint_every: Positive = 1_000
    """Steps between checkpoints; the last step and a stop write one too."""
    keep_checkpoints: Positive = 3
    """Newest checkpoints kept."""


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
    """Successive trainings, one `[[phases]]` each (NLIP, figure 3). None: one training."""

    @property
    def rate_scale(self) -> float:
        """What linear scaling multiplies the learning rate with."""
        return self.loop.global_batch / (self.schedule.reference_batch or self.loop.global_batch)

    @model_validator(mode="after")
    def _data_agree(self) -> Self:
        data, evaluation, chosen = self.data, self.evaluation, self.classification
        if not (data.runs or data.files):
            raise ValueError("[data] runs and files are empty; give what is to be trained on")
        if any(each.held_out for each in evaluation.retrieval) and not data.held_out:
            raise ValueError(
                "[[evaluation.retrieval]] held_out = true, and [data] held_out = 0: no pair is held out; give a share"
            )
        resize, crop = evaluation.resize_px or data.resize_px, evaluation.crop_px or data.crop_px
        if crop > resize:
            raise ValueError(
                f"[evaluation] crop_px ({crop}) is above resize_px ({resize}; 0: as in [data]); lower the one or raise "
                "the other"
            )
        if evaluation.averaged and not self.optimizer.average:
            raise ValueError(
                "[evaluation] averaged = true with [optimizer] average = 0: no average is kept; train with one"
            )
        if bool(chosen.train) != bool(chosen.test):
            raise ValueError("[classification] has train or test, and not both; give the other")
        if chosen.train and not self.loop.chunk:
            raise ValueError('[loop] chunk = "auto" with [classification] train: give a number of images')
        if chosen.train and (self.image_tower.token_drop or evaluation.retrieval or evaluation.sets):
            raise ValueError(
                "[classification] train, and [image_tower] token_drop, [[evaluation.retrieval]] or [evaluation] sets, "
                "which are of captions; leave them out"
            )
        return self

    @model_validator(mode="after")
    def _sizes_are_multiples(self) -> Self:
        tower, loss, chunk = self.image_tower, self.loss, self.loop.chunk
        multiples = list[tuple[str, int, str, int]]()  # a setting, and what it has to be a multiple of
        if tower.is_vit:
            patch = (f"the patches of {tower.architecture}", int(tower.architecture[-2:]))
            multiples += [
                ("[data] crop_px", self.data.crop_px, *patch),
                ("[evaluation] crop_px", self.evaluation.crop_px, *patch),
                ("[image_tower] positions_px", tower.positions_px, *patch),
            ]
        elif not chunk and tower.batch_norm in ("local", "sync"):
            raise ValueError(
                f'[loop] chunk = "auto", and [image_tower] batch_norm = "{tower.batch_norm}" takes the statistics of '
                "chunks: what is learned would depend on memory; give a number"
            )
        if tower.has_groups and chunk < self.loop.global_batch:
            multiples.append(("[loop] chunk", chunk, "[image_tower] ghost_group", tower.ghost_group))
        if loss.mixup:
            if loss.negatives < 1:
                raise ValueError(
                    f"[loss] mixup = {loss.mixup:g} with negatives = {loss.negatives:g}: a partner may be no "
                    "candidate; give negatives = 1"
                )
            for name, size in (("chunk", chunk), ("global_batch", self.loop.global_batch)):
                multiples.append((f"[loop] {name}", size, "[loss] mixup_group", loss.mixup_group))
        for name, number, group, size in multiples:
            if number % size:
                raise ValueError(f"{name} ({number}) is no multiple of {group} ({size}); give a multiple")
        return self

    @model_validator(mode="after")
    def _loop_agrees(self) -> Self:
        loop, tower, refused = self.loop, self.image_tower, dict[str, Mapping[str, bool]]()
        if loop.recompute == "large" and tower.is_vit:
            raise ValueError(f'[loop] recompute = "large": {tower.architecture} has no stages; give "all", or "none"')
        if loop.sharded:
            is_compiled, has_classes = loop.speed == "compiled", bool(self.classification.train)
            refused["sharded = true"] = {'speed = "compiled"': is_compiled, "[classification] train": has_classes}
        if loop.speed == "recorded":
            refused['speed = "recorded"'] = {
                f'recompute = "{loop.recompute}"': loop.recompute != "none",
                "sharded = true": loop.sharded,
                'chunk = "auto"': not loop.chunk,
                "[image_tower] frozen = true": tower.frozen,
                "[image_tower] frozen_groups": tower.frozen_groups > 0,
                f'[image_tower] architecture = "{tower.architecture}"': tower.family == "siglip",
                '[image_tower] batch_norm = "sync"': not tower.is_vit and tower.batch_norm == "sync",
            }
        for setting, others in refused.items():
            if name := next((name for name, is_given in others.items() if is_given), ""):
                raise ValueError(f"[loop] {setting} with {name}: they do not go together; give one of them")
        return self

    @model_validator(mode="after")
    def _nlip_agrees(self) -> Self:
        noise, captioner = self.noise, self.captioner
        if not self.phases:  # each is checked by itself
            if noise.captions and not noise.estimates:
                raise ValueError("[noise] captions without estimates: nobody knows which pairs are noisy; give both")
            if noise.smoothing and not noise.estimates:
                raise ValueError(
                    f"[noise] smoothing = {noise.smoothing:g} without estimates; give what `altalign nlip noise` made "
                    "of a training run"
                )
            if noise.smoothing and self.loss.name == "sigmoid":
                raise ValueError('[noise] smoothing with [loss] name = "sigmoid", of softmax alone; leave one out')
            if noise.smoothing and (self.loss.label_smoothing or self.loss.mixup):
                raise ValueError("[noise] smoothing with [loss] label_smoothing or mixup: the loss takes one; give 0")
        if self.reconstruction.weight and not self.image_tower.token_drop:
            raise ValueError("[reconstruction] weight without [image_tower] token_drop: no patch is masked; give 0.5")
        if captioner.weight and not (self.text_tower.architecture == "bart" and self.image_tower.is_vit):
            raise ValueError('[captioner] weight: it wants [text_tower] architecture = "bart", and a ViT; give both')
        if (captioner.weight or self.reconstruction.weight) and self.image_tower.family == "siglip":
            raise ValueError("[captioner] or [reconstruction] weight: a decoder wants a ViT with [CLS]; give vit_b16")
        if captioner.weight and (self.loss.mixup or self.data.word_corruption):
            raise ValueError("[captioner] weight with [loss] mixup or [data] word_corruption; give 0 for both")
        return self
