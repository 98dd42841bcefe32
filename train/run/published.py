"""Published weights of CLIP and SigLIP, by open_clip or transformers, under the names of our model.

Both libraries have the same blocks as timm, under other names. transformers has query, key and value apart, which
timm has in one; timm has those of SigLIP's attention pooling apart, which transformers has in one. What has no
counterpart here keeps its name.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from altalign import storage
from altalign.errors import UsageError

_MARKS = ("visual.conv1.weight", "vision_model.embeddings.patch_embedding.weight", "text_projection")
_MARKS_OF_TEXT = ("token_embedding.weight",)  # after `text.` or `text_model.embeddings.`
_BLOCK = r"(?:transformer\.resblocks|encoder\.layers)\.(\d+)\."
_NAMES = [  # theirs, ours
    (rf"^(?:visual|vision_model)\.{_BLOCK}", r"image_tower.blocks.\1."),
    (rf"^(?:text\.|text_model\.)?{_BLOCK}", r"text_tower.blocks.\1."),
    (r"^visual\.trunk\.", "image_tower."),
    (r"^(?:visual\.|vision_model\.embeddings\.)class_embedding$", "image_tower.cls_token"),
    (
        r"^(?:visual\.positional_embedding|vision_model\.embeddings\.position_embedding\.weight)$",
        "image_tower.pos_embed",
    ),
    (r"^(?:visual\.conv1|vision_model\.embeddings\.patch_embedding)\.", "image_tower.patch_embed.proj."),
    (r"^(?:visual\.ln_pre|vision_model\.pre_layrnorm)\.", "image_tower.norm_pre."),
    (r"^(?:visual\.ln_post|vision_model\.post_layernorm)\.", "image_tower.norm."),
    (r"^vision_model\.head\.probe$", "image_tower.attn_pool.latent"),
    (r"^vision_model\.head\.attention\.out_proj\.", "image_tower.attn_pool.proj."),
    (r"^vision_model\.head\.layernorm\.", "image_tower.attn_pool.norm."),
    (r"^vision_model\.head\.", "image_tower.attn_pool."),
    (r"^(?:visual\.proj|visual_projection\.weight)$", "image_projection.weight"),
    (r"^(?:text\.|text_model\.embeddings\.)?token_embedding\.", "text_tower.token_embedding."),
    (r"^(?:text\.)?positional_embedding$", "text_tower.positional_embedding"),
    (r"^text_model\.embeddings\.position_embedding\.weight$", "text_tower.positional_embedding"),
    (r"^(?:text\.ln_final|ln_final|text_model\.final_layer_norm)\.", "text_tower.norm."),
    (r"^(?:text\.)?text_projection$", "text_projection.weight"),
    (r"^(?:text\.text_projection|text_model\.head)\.", "text_projection."),
]
_OF_A_BLOCK = [
    (r"(blocks\.\d+\.)(?:ln_|layer_norm)([12])\.", r"\1norm\2."),
    (r"(blocks\.\d+\.)(?:self_)?attn\.in_proj_", r"\1attn.qkv."),
    (r"(blocks\.\d+\.)(?:self_)?attn\.out_proj\.", r"\1attn.proj."),
    (r"(blocks\.\d+\.mlp\.)c_fc\.", r"\1fc1."),
    (r"(blocks\.\d+\.mlp\.)c_proj\.", r"\1fc2."),
]
_APART = re.compile(r"(.*\.self_attn\.)q_proj\.(weight|bias)")
_TOGETHER = re.compile(r"(vision_model\.head\.attention\.)in_proj_(weight|bias)")
_LIBRARY = re.compile(r"(?:^|[/\\])open_clip_[^/\\]*$")


def as_ours(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A whole model, or a tower of one, by our names; what is no CLIP or SigLIP stays as it is."""
    tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    if not any(name in _MARKS or name.endswith(_MARKS_OF_TEXT) for name in tensors):
        return tensors
    ours = dict[str, Tensor]()
    for name, tensor in tensors.items():
        if name.endswith("position_ids") or re.search(r"self_attn\.[kv]_proj\.", name):
            continue
        if found := _APART.fullmatch(name):
            parts = [tensors.get(f"{found[1]}{each}_proj.{found[2]}", tensor[:0]) for each in "qkv"]
            ours[_renamed(f"{found[1]}in_proj_{found[2]}")] = torch.cat(parts)
        elif found := _TOGETHER.fullmatch(name):
            width = len(tensor) // 3
            ours[f"image_tower.attn_pool.q.{found[2]}"] = tensor[:width]
            ours[f"image_tower.attn_pool.kv.{found[2]}"] = tensor[width:]
        else:
            is_transposed = name.endswith(("visual.proj", "text_projection"))  # of open_clip: (width, embedding)
            ours[_renamed(name)] = tensor.T.contiguous() if is_transposed else tensor
    for name, before in (("image_tower.cls_token", (None, None)), ("image_tower.pos_embed", (None,))):
        if name in ours and ours[name].dim() < 3:
            ours[name] = ours[name][before]
    return ours


def _renamed(name: str) -> str:
    for theirs, own in _NAMES:
        changed = re.sub(theirs, own, name)
        if changed != name:
            name = changed
            break
    for theirs, own in _OF_A_BLOCK:
        name = re.sub(theirs, own, name)
    return name


def check(folder: str, file: str, tower: str, *, activation: str, heads: int) -> None:
    """Refuse a folder whose settings say of the `image` or `text` tower what shapes of weights do not tell.

    `file` is that of the weights; settings that are not there are not asked for.
    """
    of_open_clip = bool(_LIBRARY.search(file))
    facts: Any = storage.read_json(storage.join(folder, "open_clip_config.json" if of_open_clip else "config.json"))
    if of_open_clip:
        model = facts.get("model_cfg", {})
        of_tower = model.get("vision_cfg" if tower == "image" else "text_cfg", {})
        is_tanh = of_tower.get("act_kwargs", {}).get("approximate") == "tanh"
        theirs = "quick_gelu" if model.get("quick_gelu") else "gelu_tanh" if is_tanh else "gelu"
        their_heads = of_tower.get("heads", heads)
    elif facts.get("model_type") in ("clip", "siglip"):
        of_tower = facts.get("vision_config" if tower == "image" else "text_config", {})
        default = "quick_gelu" if facts["model_type"] == "clip" else "gelu_pytorch_tanh"
        theirs = of_tower.get("hidden_act", default).replace("gelu_pytorch_tanh", "gelu_tanh")
        their_heads = of_tower.get("num_attention_heads", heads)
    else:
        return
    for name, own, other in (("activation", activation, theirs), ("heads", heads, their_heads)):
        if own != other:
            advice = f"give {name} = {other!r}" if (tower, name) != ("image", "heads") else "it cannot be loaded"
            raise UsageError(f"[{tower}_tower] weights: {folder}: {name} are {other!r} there, not {own!r}; {advice}")
