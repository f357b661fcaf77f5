"""What traces say about a collective: its name in any spelling, its element type, its size, made uniform.

Does not look at kernels (names.py does), and does not pair calls over ranks.
"""

from __future__ import annotations

import functools
import re

# Operators that share a word with a collective but stay on the device: aten::gather indexes a tensor.
_LOCAL_NAMESPACES = frozenset({"aten", "at", "native", "prim", "prims", "inductor"})

_LIBRARY = r"(?:p?nccl|rccl|hccl|hcom|gloo|ucc|mpi|oneccl|nvshmem|mscclpp)?"
_SHAPE = r"(?:multimem|oneshot|twoshot|inplace|outplace|monitored|ragged|collective|lowlatency|internode|intranode|ep|moe|i)*"
# What may follow the verb: how the buffers are passed, not what is done with them.
_VARIANT = r"(?:base|intotensor|tensor|coalesced|single|sparse|anysource|any|oop|out|vdev|2d|offset|start|done|vc?)*"

_VERBS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather|fcollect",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall|a2a",
    "broadcast": "broadcast|bcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send_recv": "(?:batch)?sendrecv",
    "send": "send",
    "recv": "recv|receive",
    "barrier": "(?:allreduce)?barrier",
    "permute": "permute|ppermute",
    "dispatch": "dispatch",
    "combine": "combine",
}
COLLECTIVES = frozenset(_VERBS)

# "one_shot_all_reduce_copy" is a collective; "all_gather_copy_in" is the local copy that FSDP makes before one.
_SPELLING = re.compile(
    f"{_LIBRARY}{_SHAPE}(?:"
    + "|".join(f"(?P<{verb}>{spellings})" for verb, spellings in _VERBS.items())
    + rf"){_VARIANT}[0-9]*|{_LIBRARY}oneshot(?P<copying>allreduce)copy(?:out)?"
)
_SEPARATORS = str.maketrans("", "", "_-.")
_LONGEST = 200
"""In characters. What is longer is no name of a collective, and is not matched at any cost."""

_DTYPE_BYTES = {
    1: "byte char bool qint8 quint8 uint8 int8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    "|signed char|unsigned char",
    2: "half bfloat16 float16 short int16 uint16|short int|unsigned short",
    4: "float float32 int int32 uint32 qint32 complexhalf|unsigned int|complex<half>",
    8: "double float64 long int64 uint64 complexfloat complex64|long int|long long|unsigned long|complex<float>",
    16: "complexdouble complex128|complex<double>",
}
_BYTES_OF = {
    spelling: nbytes
    for nbytes, spellings in _DTYPE_BYTES.items()
    for words, *phrases in [spellings.split("|")]
    for spelling in (*words.split(), *phrases)
}


@functools.lru_cache(maxsize=4096)
def normalize(name: str) -> str | None:
    """One of `COLLECTIVES` for any spelling of it, or None where the name is not that of one collective.

    >>> normalize("_c10d_functional::reduce_scatter_tensor_coalesced_")
    'reduce_scatter'
    >>> normalize("nccl:send 0->1")
    'send'
    """
    words = name[: _LONGEST + 1].split(maxsplit=1)
    if not words or len(words[0]) > _LONGEST:
        return None
    namespace, _, verb = words[0].rpartition(":")
    if namespace.rstrip(":").rpartition(":")[2].lower() in _LOCAL_NAMESPACES:
        return None
    # HCCL appends "__" and the id of the communicator.
    match = _SPELLING.fullmatch(verb.partition("__")[0].translate(_SEPARATORS).lower())
    if match is None:
        return None
    return "all_reduce" if match.lastgroup == "copying" else match.lastgroup


def dtype_bytes(dtype: str | None) -> int | None:
    """Bytes per element for a c10 scalar name ("BFloat16") or an "Input type" ("c10::BFloat16", "long int"); else None.

    Sub-byte types are None: "Float4_e2m1fn_x2" packs two in a byte, and traces do not say which of the two they count.
    """
    if dtype is None or len(dtype) > _LONGEST:
        return None
    return _BYTES_OF.get(dtype.strip().replace("c10::", "").removeprefix("torch.").lower())


def payload_bytes(
    collective: str | None, *, in_elements: int | None, out_elements: int | None, element_bytes: int | None
) -> int | None:
    """The payload of one call on one rank as DESIGN section 4 defines it, or None where the trace does not say.

    The input, except for all-gather and receive (the output) and gather (the output, which only the root has).
    Where input and output are the same buffer by definition, either will do.
    """
    if element_bytes is None or collective is None:
        return None
    elements: int | None
    match collective:
        case "all_reduce" | "broadcast" | "permute" | "send_recv":
            elements = out_elements if in_elements is None else in_elements
        case "recv":
            elements = in_elements if out_elements is None else out_elements
        case "all_gather":
            elements = out_elements
        case "gather":
            elements = out_elements or None  # 0 on every rank but the root, which is not the size of the gather
        case "scatter":
            elements = in_elements or None  # the same, seen from the other side
        case "reduce_scatter" | "all_to_all" | "send" | "reduce" | "dispatch" | "combine":
            elements = in_elements
        case _:
            return None
    return None if elements is None or elements < 0 else elements * element_bytes
