"""What data may be for, as rights holders see it (docs/reference/reservations.md)."""

from typing import Literal, TypeAlias, get_args

# any training, by the stricter reading; of generative models; of other models; a search index; nothing is opposed
Purpose: TypeAlias = Literal["train", "train-generative", "train-other", "search", "keep all"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
OPPOSABLE = tuple(purpose for purpose in PURPOSES if purpose != "keep all")
