"""The shapes that `underlap calibrate` times: small models, layouts of R ranks, and whether their transfers are carried out."""

from __future__ import annotations

import msgspec

from underlap.model import Experts, Model


def _dense(hidden: int, heads: int, kv_heads: int, head_dim: int, intermediate: int, vocab: int) -> Model:
    return Model(
        name=f"dense {hidden}",
        hidden=hidden,
        layers=1,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        vocab=vocab,
        source="shapes to be timed",
    )


def _mixture(hidden: int, heads: int, head_dim: int, experts: int, intermediate: int, vocab: int) -> Model:
    model = _dense(hidden, heads, heads, head_dim, intermediate, vocab)
    return msgspec.structs.replace(model, experts=Experts(count=experts, top_k=2, intermediate=intermediate))


Shape = tuple[Model, str, str, bool]
"""Model, layout with R ranks, workload, whether its transfers are carried out."""

SHAPES: tuple[Shape, ...] = (
    (_dense(64, 4, 2, 16, 192, 512), "tp=R", "train,gbs=4,mbs=4,seq=64", False),
    (_dense(128, 8, 4, 16, 384, 512), "dp=R", "train,gbs=4R,mbs=4,seq=128", False),
    (_dense(64, 8, 4, 8, 192, 512), "dp=R", "train,gbs=16R,mbs=16,seq=128", False),
    (_dense(256, 8, 8, 32, 1024, 1024), "tp=R", "train,gbs=4,mbs=4,seq=128", False),
    (_dense(512, 8, 4, 64, 1536, 2048), "tp=R", "train,gbs=2,mbs=2,seq=256", False),
    (_dense(512, 8, 8, 64, 1024, 1024), "dp=R", "train,gbs=4R,mbs=4,seq=256", False),
    (_dense(1024, 16, 16, 64, 2048, 1024), "tp=R", "train,gbs=2,mbs=2,seq=256", False),
    (_dense(384, 6, 6, 64, 1536, 4096), "tp=R", "train,gbs=4,mbs=4,seq=64", False),
    (_dense(256, 4, 4, 64, 512, 512), "dp=R", "train,gbs=R,mbs=1,seq=1024", False),
    (_dense(256, 4, 4, 64, 512, 512), "dp=R", "train,gbs=R,mbs=1,seq=512", False),
    (_dense(256, 8, 8, 32, 512, 512), "dp=R", "train,gbs=2R,mbs=2,seq=384", False),
    (_dense(384, 6, 6, 64, 768, 512), "dp=R", "train,gbs=3R,mbs=3,seq=160", False),
    (_dense(512, 8, 8, 64, 2048, 512), "tp=R", "train,gbs=1,mbs=1,seq=64", False),
    (_dense(256, 8, 4, 32, 768, 512), "tp=R,sp", "train,gbs=2,mbs=2,seq=128", False),
    (_dense(256, 8, 4, 32, 768, 512), "fsdp=R", "train,gbs=2R,mbs=2,seq=128", False),
    (_mixture(128, 4, 32, 4, 256, 512), "dp=R", "train,gbs=2R,mbs=2,seq=128", False),
    (_mixture(256, 8, 32, 8, 512, 512), "dp=R", "train,gbs=4R,mbs=4,seq=128", False),
    (_dense(128, 4, 4, 32, 384, 512), "dp=R", "train,gbs=2R,mbs=2,seq=64", True),
    (_dense(256, 8, 4, 32, 512, 512), "dp=R", "train,gbs=2R,mbs=2,seq=64", True),
    (_dense(128, 4, 4, 32, 384, 512), "fsdp=R", "train,gbs=2R,mbs=2,seq=64", True),
    (_dense(256, 8, 4, 32, 512, 512), "fsdp=R", "train,gbs=2R,mbs=2,seq=64", True),
    (_dense(256, 8, 4, 32, 512, 512), "tp=R", "train,gbs=4,mbs=4,seq=64", True),
    (_dense(512, 8, 4, 64, 512, 512), "tp=R,sp", "train,gbs=4,mbs=4,seq=64", True),
    (_dense(128, 8, 4, 16, 384, 512), "tp=R,sp", "train,gbs=4,mbs=4,seq=64", True),
    (_mixture(128, 4, 32, 4, 256, 512), "ep=R,dp=R", "train,gbs=2R,mbs=2,seq=64", True),
    (_mixture(256, 4, 32, 4, 256, 512), "ep=R,dp=R", "train,gbs=2R,mbs=2,seq=128", True),
)
QUICK = (SHAPES[0], SHAPES[1], SHAPES[12], SHAPES[14])


def divides(model: Model, layout: str, ranks: int) -> bool:
    """Whether so many ranks divide what the layout divides among them. A shape that they do not is left out."""
    if layout.startswith("tp"):
        return not any(count % ranks for count in (model.heads, model.kv_heads, model.intermediate, model.vocab))
    if layout.startswith("ep"):
        return model.experts is not None and model.experts.count % ranks == 0
    return True


def times(part: str, ranks: int) -> str:
    """gbs=4R is gbs=8 on two ranks."""
    name, equals, value = part.partition("=")
    if not value.endswith("R"):
        return part
    return f"{name}{equals}{int(value[:-1] or 1) * ranks}"
