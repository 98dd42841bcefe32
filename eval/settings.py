"""Settings of `altalign eval --sets FILE`: the sets that models are measured on, one table each, by task."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from altalign.settings import Settings

Text = Annotated[str, StringConstraints(min_length=1)]
Positive = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]


class SetSettings(Settings):
    """What every set has."""

    name: Text
    """What its metrics are called: `TASK/NAME`."""
    metric: Any  # of each task its own
    """What stands for the set in the table and in means."""
    split: str = "test"
    """Of Karpathy's JSON the images of this split; of CLIP_benchmark's folders the tars in this one."""
    image_column: Text = "image"
    """Of a table: column of the image's bytes."""
    test_set: str = ""
    """What this set is called in `[decontaminate] test_sets` of the runs. Empty: as here."""


class CaptionSettings(Settings):
    """Which images and captions of a set are searched, here and while a model trains."""

    name: Text
    """What its metrics are called: `retrieval/NAME`."""
    image_column: Text = "image"
    """Of a table: column of the image's bytes."""
    caption_column: Text = "caption"
    """Of a table: column of the caption, or of a list of them. Rows of one image's bytes are one image."""
    images_at_most: Whole = 0
    """Take this many images, chosen by the hash of their identity. `0`: all."""
    captions_at_most: Whole = 0
    """Take the first so many captions of an image: with 5, MSCOCO's 5K test images have 25,000. `0`: all."""
    repeated_captions: bool = True
    """Take a caption as often as an image has it, as published protocols do. `false`: once."""
    shared_captions: Literal["own", "all"] = "own"
    """A caption that several images have is right for its `own` (published protocols), or for `all` of them."""


class RetrievalSet(CaptionSettings, SetSettings):
    """Image-text retrieval in both directions (ALIGN, 5.1; ZeroVL, 5.2)."""

    metric: Literal[
        "mean_recall",
        "rsum",
        "image_to_text_r1",
        "image_to_text_r5",
        "image_to_text_r10",
        "text_to_image_r1",
        "text_to_image_r5",
        "text_to_image_r10",
    ] = "mean_recall"
    path: str = ""
    """Karpathy's JSON, a glob of Parquet files or tars, a folder of CLIP_benchmark or `save_to_disk`, or a run."""
    held_out: bool = False
    """The pairs that the training run's `[data] held_out` keeps back; in place of `path`."""
    images: str = ""
    """Of Karpathy's JSON: the folder of the images, with or without the folders that the JSON names."""

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if self.held_out == bool(self.path):
            raise ValueError("give a path or held_out = true, one of both")
        return self


class LabelledSetSettings(SetSettings):
    """What sets of labelled images have."""

    path: Text
    """A folder of class folders, a folder of CLIP_benchmark or `save_to_disk`, a glob of Parquet files or tars, or a
    list (`.txt`) of files and classes."""
    label_column: Text = "label"
    """Of a table: column of the class, a number or a name."""
    classes: str = ""
    """`imagenet`, or a file with a class a line: its name, or its folder's name, a tab, its name. Empty: as the set
    says."""


class ZeroShotSet(LabelledSetSettings):
    """Zero-shot classification by prompts (ALIGN, 5.2; NLIP)."""

    metric: Literal["top1", "top5", "mean_per_class"] = "top1"
    templates: list[Text] = Field(default_factory=list)
    """Prompts in which `{}` or `{c}` stands for the class, files with one a line, or `imagenet` (80 of CLIP's). Empty:
    as the set says, or the class's name alone."""
    only_own_classes: bool = False
    """Choose among the classes of the set's images alone, as for ImageNet-R and ImageNet-A."""


class KnnSet(LabelledSetSettings):
    """Whether an image's class is among those of its nearest k images (ALIGN, tables 8 to 10)."""

    metric: Literal["r1", "r10"] = "r1"
    index: Text
    """Where the images are that are searched; as `path`."""
    index_split: str = "train"
    """As `split`, of `index`."""


class LinearProbeSet(LabelledSetSettings):
    """A linear layer on embeddings, fitted by L-BFGS (CLIP, A.3)."""

    metric: Literal["top1", "top5", "mean_per_class"] = "top1"
    train: Text
    """Where the images are that it is fitted on; as `path`."""
    train_split: str = "train"
    """As `split`, of `train`."""
    validation: str = ""
    """Where those are that choose the penalty; as `path`. Empty: a fifth of `train`, drawn by lot."""


class VtabSet(SetSettings):
    """VTAB's 19 tasks with 1,000 examples each, by the linear probe."""

    metric: Literal["mean_all", "mean_natural", "mean_specialised", "mean_structured", "mean_there"] = "mean_there"
    path: Text
    """A folder with one of each task: `caltech101/train800.txt`, `val200.txt`, `test.txt`, lines of FILE CLASS."""


class CxcSet(SetSettings):
    """Crisscrossed Captions: retrieval with its positives, and correlation with ratings (ALIGN, table 3)."""

    metric: Literal["image_to_text_r1", "text_to_image_r1", "text_to_text_r1", "image_to_image_r1"] = "image_to_text_r1"
    path: Text
    """Karpathy's JSON of MSCOCO."""
    images: Text
    """The folder of the images, with or without the folders that the JSON names."""
    ratings: Text
    """The folder of `sts_test.csv`, `sis_test.csv` and `sits_test.csv`, plain or gzipped."""
    captions_at_most: Whole = 5
    """Take the first so many captions of an image. `0`: all."""
    samples: Positive = 1_000
    """Of each correlation."""


class CaptioningSet(SetSettings):
    """Captions that the model writes, beside those of the set: BLEU-4 and CIDEr (NLIP, table 3)."""

    metric: Literal["cider", "bleu_4"] = "cider"
    path: Text
    """As of retrieval: Karpathy's JSON, a glob of Parquet files or tars, a folder of CLIP_benchmark or
    `save_to_disk`, or a run."""
    images: str = ""
    """Of Karpathy's JSON: the folder of the images, with or without the folders that the JSON names."""
    caption_column: Text = "caption"
    """Of a table: column of the caption, or of a list of them. Rows of one image's bytes are one image."""
    images_at_most: Whole = 0
    """Take this many images, chosen by the hash of their identity. `0`: all."""
    captions_at_most: Whole = 0
    """Compare with the first so many captions of an image. `0`: all."""


class MultilingualSet(SetSettings):
    """Image-text retrieval in several languages, and on average: Multi30K, XM3600 (ALIGN, table 11)."""

    metric: Literal["mean_recall", "rsum"] = "mean_recall"
    path: Text
    """XM3600's `captions.jsonl`, or a list of names of images, a line each."""
    images: Text
    """The folder of the images."""
    captions: dict[str, list[Text]] = Field(default_factory=dict)
    """With a list: files of captions by language, a line an image, as Multi30K has them."""
    languages: list[Text] = Field(default_factory=list)
    """Of XM3600 these languages. Empty: all."""


class WordSimilaritySet(SetSettings):
    """Similarity of words by the text tower: SimLex-999 (ALIGN, table 12)."""

    metric: Literal["spearman"] = "spearman"
    path: Text
    """SimLex-999.txt, or lines of word, word, rating with tabs between."""


class ChoicesSet(SetSettings):
    """Captions, or images, that differ in few words: SugarCrepe, Winoground."""

    metric: Literal["right", "mean_of_files", "text", "image", "group"] = "right"
    path: Text
    """A glob of SugarCrepe's JSON files; or Winoground's `examples.jsonl`, with `metric` `text`, `image` or `group`."""
    images: Text
    """The folder of the images."""


class ComposedSet(SetSettings):
    """Retrieval by an image plus or minus a text (ALIGN, figure 5)."""

    metric: Literal["r1", "r5", "r10"] = "r1"
    path: Text
    """Queries as JSON Lines: `image`, `text`, `sign` ("+" or "-"), and `target` where it is known."""
    images: Text
    """The folder of the images, all of which are searched."""
    text_weight: float = 2.0
    """Of the text (footnote 4)."""
    image_weight: float = 1.0
    """Of the image."""


class IntervalSettings(Settings):
    """Intervals by bootstrap over images."""

    resamples: Whole = 1_000
    """How often the images are drawn anew. `0`: no intervals."""
    seed: Whole = 0
    """Of the draws."""


class NearDuplicateSettings(Settings):
    """Test images that have near-duplicates in the pool."""

    runs: list[Text] = Field(default_factory=list)
    """Finished curations that looked for them, beside those that the model was trained on."""


class EvalSets(Settings):
    """The sets of an evaluation."""

    retrieval: list[RetrievalSet] = Field(default_factory=list)
    zero_shot: list[ZeroShotSet] = Field(default_factory=list)
    knn: list[KnnSet] = Field(default_factory=list)
    linear_probe: list[LinearProbeSet] = Field(default_factory=list)
    vtab: list[VtabSet] = Field(default_factory=list)
    cxc: list[CxcSet] = Field(default_factory=list)
    captioning: list[CaptioningSet] = Field(default_factory=list)
    multilingual: list[MultilingualSet] = Field(default_factory=list)
    word_similarity: list[WordSimilaritySet] = Field(default_factory=list)
    choices: list[ChoicesSet] = Field(default_factory=list)
    composed: list[ComposedSet] = Field(default_factory=list)
    intervals: IntervalSettings = IntervalSettings()
    near_duplicates: NearDuplicateSettings = NearDuplicateSettings()

    @property
    def by_task(self) -> list[tuple[str, SetSettings]]:
        """Every set with its task, in this order."""
        tasks = (name for name in type(self).model_fields if name not in ("intervals", "near_duplicates"))
        return [(task, each) for task in tasks for each in getattr(self, task)]

    @model_validator(mode="after")
    def _sets_are_told_apart(self) -> Self:
        names = [f"{task}/{each.name}" for task, each in self.by_task]
        if twice := next((name for number, name in enumerate(names) if name in names[:number]), ""):
            raise ValueError(f"two sets are called {twice}; give each its own name")
        if not names:
            tasks = [name for name in type(self).model_fields if name not in ("intervals", "near_duplicates")]
            raise ValueError(f"no set; add one of [[{']], [['.join(tasks)}]]")
        return self
