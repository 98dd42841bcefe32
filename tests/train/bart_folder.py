"""A folder of BART as facebook/bart-base is published, in small."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BartConfig, BartForConditionalGeneration, RobertaTokenizer


def write_bart(folder: Path, captions: Sequence[str]) -> Path:
    """Write config, random weights and a tokenizer of these captions: 2 layers, width 32, 4 heads."""
    folder.mkdir(exist_ok=True)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([*captions] * 20, trainer)
    made.model.save(str(folder))  # vocab.json and merges.txt
    numbers = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({**numbers, "<mask>": len(numbers)}))
    torch.manual_seed(3)
    config = BartConfig(
        vocab_size=len(numbers) + 1,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=40,
        init_std=0.3,
    )
    BartForConditionalGeneration(config).save_pretrained(folder)
    RobertaTokenizer.from_pretrained(str(folder)).save_pretrained(folder)  # tokenizer.json
    return folder
