"""What stands in for a GPU in TRL's ``AsyncGRPOTrainer``. These three and no more: all the rest is TRL's own.

1. The GPU's name and kind, which the trainer and our checks ask PyTorch for.
2. The look for an installed vLLM: it's needed for weight sync by NCCL alone, and a LoRA adapter goes over HTTP.
3. FlashAttention 3, which runs on a GPU: its packed attention, done with PyTorch's own.
"""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Puts them in place, in the process that trains, before it makes a trainer."""
    import torch
    from trl.experimental.async_grpo import async_rollout_worker, packing

    torch.cuda.get_device_name = lambda *args, **keywords: "cpu"
    torch.cuda.get_device_capability = lambda *args, **keywords: (9, 0)
    async_rollout_worker.is_vllm_available = lambda *args, **keywords: True
    packing.tree_attention = packed_attention


def packed_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    tree_kv_index: Any,
    tree_cu_seqlens_q: Any,
    tree_cu_seqlens_k: Any,
    scaling: float | None = None,
    **unused: Any,
) -> tuple[Any, None]:
    """Causal attention of each stretch of queries to the keys that its index names, its end aligned with theirs.

    Args:
        module: The attention layer.
        query: ``(1, heads, tokens, dim)``.
        key: ``(1, kv heads, tokens, dim)``.
        value: As ``key``.
        attention_mask: Unused.
        tree_kv_index: Positions of keys, stretch after stretch.
        tree_cu_seqlens_q: Where each stretch of queries starts, and the end.
        tree_cu_seqlens_k: Where each stretch of ``tree_kv_index`` starts, and the end.
        scaling: Factor of the scores.
        **unused: What FlashAttention takes besides.

    Returns:
        ``(1, tokens, heads, dim)``, and no weights.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    queries, keys, values = query[0], key[0], value[0]
    groups = queries.shape[0] // keys.shape[0]
    keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
    starts, ends = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    parts = []
    for at in range(len(starts) - 1):
        seen = tree_kv_index[ends[at] : ends[at + 1]]
        length, whole = starts[at + 1] - starts[at], ends[at + 1] - ends[at]
        mask = torch.ones(length, whole, dtype=torch.bool).tril(whole - length)
        part = queries[:, starts[at] : starts[at + 1]]
        parts.append(scaled_dot_product_attention(part, keys[:, seen], values[:, seen], attn_mask=mask, scale=scaling))
    return torch.cat(parts, 1).transpose(0, 1)[None], None
