"""Closed formulas of the literature: bytes that each parallel axis moves, and the bubbles of pipeline schedules.

All per rank and per step of the unit named; `bytes` are payloads as Transfer means them, `link` figures are what leaves the rank.
Sources stand beside each. They are what ledgers are checked against; nothing here knows a machine or a time.
"""

from __future__ import annotations

import math

# Bytes that leave a rank, by collective --------------------------------------------------------------------------------------


def link_bytes(collective: str, payload_bytes: float, ranks: int) -> float:
    """Bytes that leave a rank (the mean over ranks) under a bandwidth-optimal algorithm without in-network reduction.

    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2009): 2 (n - 1) / n for an all-reduce, (n - 1) / n
    for its two halves. An all-to-all keeps its own share; in a pipelined broadcast or reduction all ranks but one forward.
    """
    if ranks == 1:
        return 0.0
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks * payload_bytes
    if collective == "send":
        return payload_bytes
    return (ranks - 1) / ranks * payload_bytes


# Tensor and sequence parallelism ------------------------------------------------------------------------------------------------


def tensor_parallel_payload(tokens: int, hidden: int, element_bytes: float) -> float:
    """Payload of each all-reduce; a transformer layer has two forward and two backward (f and g of the paper).

    Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3.
    """
    return tokens * hidden * element_bytes


def tensor_parallel_link_bytes(tokens: int, hidden: int, element_bytes: float, tp: int) -> float:
    """Bytes that leave a rank per layer, forward and backward: four all-reduces.

    With sequence parallelism each becomes an all-gather and a reduce-scatter, and the bytes stay the same.
    Shoeybi et al., arXiv 1909.08053, section 3; Korthikanti et al., arXiv 2205.05198, section 4.2.2.
    """
    return 4 * link_bytes("all_reduce", tensor_parallel_payload(tokens, hidden, element_bytes), tp)


def sequence_parallel_regather_bytes(tokens: int, hidden: int, element_bytes: float, tp: int) -> float:
    """Extra bytes per layer where the backward gathers its inputs again instead of keeping them: two all-gathers.

    Korthikanti et al., arXiv 2205.05198, section 4.2.2 (only the sharded input of each linear block is stored).
    """
    return 2 * link_bytes("all_gather", tensor_parallel_payload(tokens, hidden, element_bytes), tp)


# Data parallelism ---------------------------------------------------------------------------------------------------------------


def zero_link_bytes(stage: int, parameters: float, element_bytes: float, dp: int) -> float:
    """Bytes that leave a rank per step under ZeRO stage 0 (plain), 1, 2 or 3, without accumulation.

    Gradients and parameters in one precision: reduce-scatter of gradients and all-gather of parameters move what one
    all-reduce moves; stage 3 gathers in the forward and again in the backward, 1.5 times as much.
    Rajbhandari et al., ZeRO, arXiv 1910.02054, section 7 (2 psi for stages 1 and 2, 3 psi for stage 3).
    """
    whole = parameters * element_bytes
    if stage == 0:
        return link_bytes("all_reduce", whole, dp)
    gathers = 2 if stage == 3 else 1
    return link_bytes("reduce_scatter", whole, dp) + gathers * link_bytes("all_gather", whole, dp)


# Context parallelism ------------------------------------------------------------------------------------------------------------


def ring_attention_bytes(tokens: int, kv_heads: int, head_dim: int, element_bytes: float, cp: int) -> float:
    """Bytes that leave a rank per layer forward: its block of keys and values goes round, cp - 1 hops.

    `tokens` over all ranks of the ring. The backward sends the block and its gradient: twice as much.
    Liu et al., Ring Attention, arXiv 2310.01889, section 3.
    """
    return (cp - 1) * 2 * (tokens / cp) * kv_heads * head_dim * element_bytes


def ulysses_payload(tokens: int, hidden: int, kv_hidden: int, element_bytes: float, cp: int) -> float:
    """Payload of all four all-to-alls of a layer forward: queries, keys and values in, the result out.

    `tokens` over all ranks. With kv_hidden = hidden each sends 4 N h / P elements. The backward has the same four.
    Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509, section 3.2.
    """
    return (2 * hidden + 2 * kv_hidden) * (tokens / cp) * element_bytes


# Expert parallelism -------------------------------------------------------------------------------------------------------------


def reached(topk: int, experts: int, parts: int, limit: int | None = None) -> float:
    """Expected number of parts (ranks, or domains) that hold one of a token's topk distinct experts, drawn evenly.

    The experts lie evenly in the parts. With a limit the token's experts come from that many parts only (node-limited
    routing: DeepSeek-V3, arXiv 2412.19437, section 2.1.2). Hypergeometric: 1 - C(E - E/p, k) / C(E, k) per part.
    """
    if limit is not None and limit < parts:
        return reached(topk, max(experts * limit // parts, topk), limit)
    own = experts / parts
    missed = 1.0
    for drawn in range(topk):
        missed *= max(experts - own - drawn, 0.0) / (experts - drawn)
    return parts * (1.0 - missed)


def expert_parallel_payload(tokens: int, hidden: int, element_bytes: float, topk: int) -> float:
    """Payload of a dispatch (or combine) as a plain all-to-all: each token once per expert, the own rank included.

    Lepikhin et al., GShard, arXiv 2006.16668, section 3.2, with dropless routing.
    """
    return tokens * topk * hidden * element_bytes


def expert_parallel_domain_bytes(
    payload_bytes: float, topk: int, experts: int, span: tuple[int, int], limit: int | None = None
) -> tuple[float, float]:
    """(bytes inside the domain, bytes between domains) that leave a rank, each token once per domain and once per rank.

    `payload_bytes`: the rank's tokens, each once. A token crosses to each other domain once, to the rank of the same position,
    and is forwarded inside to each rank that has an expert for it. DeepSeek-V3, arXiv 2412.19437, section 3.2.2.
    """
    local, domains = span
    ranks = local * domains
    over_ranks = reached_ranks(topk, experts, span, limit)
    over_domains = reached(topk, experts, domains, limit)
    outside = payload_bytes * over_domains * (domains - 1) / domains
    inside = payload_bytes * over_ranks * (1 - 1 / local) if ranks > 1 else 0.0
    return inside, outside


def reached_ranks(topk: int, experts: int, span: tuple[int, int], limit: int | None = None) -> float:
    """Expected ranks that one token goes to, the own one included; the limit counts domains."""
    local, domains = span
    if limit is not None and limit < domains:
        return reached(topk, max(experts * limit // domains, topk), local * limit)
    return reached(topk, experts, local * domains)


# Pipelines ----------------------------------------------------------------------------------------------------------------------


def pipeline_boundary_bytes(tokens: int, hidden: int, element_bytes: float, tp: int = 1) -> float:
    """Message per micro-batch and boundary, one way; with tp ranks that each send their part, the receivers gather it.

    Narayanan et al., arXiv 2104.04473, sections 3.2 and 4.1 (scatter/gather: b s h / t).
    """
    return tokens * hidden * element_bytes / tp


def bubble_gpipe(stages: int, forward: float, backward: float) -> float:
    """Idle time per stage and step, also of 1F1B: (p - 1) (F + B). Huang et al., GPipe, arXiv 1811.06965, section 2.3."""
    return (stages - 1) * (forward + backward)


def bubble_1f1b(stages: int, forward: float, backward: float) -> float:
    """(p - 1) (F + B), as GPipe with less memory. Narayanan et al., arXiv 2104.04473, section 2.2.1."""
    return bubble_gpipe(stages, forward, backward)


def bubble_interleaved(stages: int, chunks: int, forward: float, backward: float) -> float:
    """(p - 1) (F + B) / v with v chunks per stage; F and B of all chunks. Narayanan et al., arXiv 2104.04473, section 2.2.2."""
    return (stages - 1) * (forward + backward) / chunks


def bubble_zb_h1(stages: int, forward: float, backward_input: float, backward_weight: float) -> float:
    """(p - 1) (F + B - W), B without the weight gradient W. Qi et al., Zero bubble, arXiv 2401.10241, section 2.3."""
    return (stages - 1) * (forward + backward_input - backward_weight)


def bubble_dualpipe(stages: int, overlapped: float, backward: float, backward_weight: float) -> float:
    """(p / 2 - 1) (F&B + B - 3 W), B with the weight gradient. deepseek-ai/DualPipe README; p even."""
    return (stages / 2 - 1) * (overlapped + backward - 3 * backward_weight)


def bubble_dualpipe_v(stages: int, overlapped: float, backward: float, backward_weight: float) -> float:
    """As DualPipe with `stages` model chunks on half as many devices. deepseek-ai/DualPipe README, DualPipeV."""
    return bubble_dualpipe(stages, overlapped, backward, backward_weight)


def ring_all_reduce_seconds(payload_bytes: float, ranks: int, bytes_per_s: float, hop_s: float = 0.0) -> float:
    """2 (n - 1) steps of payload / n each. Patarasuk and Yuan (2009)."""
    steps = 2 * (ranks - 1)
    return steps * (payload_bytes / ranks / bytes_per_s + hop_s)


def half_peak_bytes(latency_s: float, bytes_per_s: float) -> float:
    """Size at which latency and transfer take the same time (n 1/2): below it a message is bound by latency.

    Hockney and Jesshope, Parallel Computers 2 (1988).
    """
    return math.inf if math.isinf(bytes_per_s) else latency_s * bytes_per_s
