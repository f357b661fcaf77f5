"""A file -> the jobs that it configures: for each the settings that rules know, and how much of it was seen.

What kind a file is follows from its suffix, else from its content. Errors name the file and the line, and quote nothing.
"""

# long because: every kind of file ends in the same few steps, which stand here together.
from __future__ import annotations

import dataclasses
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from underlap.errors import InputError, UnreadableError
from underlap.lint import arguments, catalog, shell
from underlap.lint.catalog import Kind
from underlap.lint.devices import capability_of, is_amd
from underlap.lint.documents import Pair, pairs_of_json, pairs_of_toml, pairs_of_yaml
from underlap.lint.environment import ALSO_READ, looks_like_dump, pairs_of_dump, pairs_of_mapping
from underlap.lint.manifests import command_lines
from underlap.lint.settings import Place, Setting, value_of
from underlap.lint.shell_expansion import UNKNOWN, Token

LARGEST = 4_000_000
"""Bytes. A configuration has some thousands; more is another kind of file."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one source gives to one program: a launch in a script, or a file."""

    settings: list[Setting]
    frameworks: dict[str, str]
    whole: frozenset[str] = frozenset()
    capability: int | None = None
    amd: bool = False
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    line: int | None = None
    others: frozenset[int] = frozenset()
    """Of settings that no rule knows, a number that tells whether two are the same, and nothing else."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A source that was read."""

    file: str
    kind: str
    jobs: list[Job]


def read_file(path: Path) -> Reading:
    """Read a configuration. Raises UnreadableError, or InputError where it cannot be parsed."""
    text = _text_of(path)
    name = path.name
    suffix = path.suffix.lower()
    if suffix == ".py":
        raise InputError(
            f"{path} is Python: underlap does not run it. Give the configuration it writes (YAML, JSON, TOML), or the "
            f"launch script."
        )
    if "\0" in text:
        raise UnreadableError(f"{path} is binary: give a script, a configuration as text, or an environment by --env.")
    if suffix in (".yaml", ".yml"):
        return _document(name, "YAML", pairs_of_yaml(text, str(path)), text)
    if suffix == ".toml":
        return _document(name, "TOML", pairs_of_toml(text, str(path)), text)
    if suffix in (".json", ".jsonc") or (not suffix and text.lstrip().startswith("{")):
        return _document(name, "JSON", pairs_of_json(text, str(path)), text)
    if suffix == ".env" or (_all_assignments(text) and suffix not in (".sh", ".bash", ".sbatch", ".slurm")):
        return Reading(file=name, kind="environment", jobs=[_job(pairs_of_dump(text), name, text)])
    return _script(name, text)


def read_environment(path: Path) -> Reading:
    """Read the dump of an environment. Raises UnreadableError, or InputError where it is none."""
    text = _text_of(path)
    stripped = text.lstrip()
    if path.suffix.lower() in (".yaml", ".yml"):
        pairs = pairs_of_yaml(text, str(path))
    elif stripped.startswith("{"):
        pairs = pairs_of_json(text, str(path))
    else:
        if stripped and not looks_like_dump(text):
            raise InputError(f"{path} is no dump of an environment: write one with `env > job.env` inside the job.")
        pairs = pairs_of_dump(text)
    return Reading(file=path.name, kind="environment", jobs=[_job(_named_variables(pairs), path.name, "")])


def read_process(variables: Mapping[str, str]) -> Reading:
    """The environment of a process."""
    return Reading(file="this environment", kind="environment", jobs=[_job(pairs_of_mapping(variables), "this environment", "")])


def _text_of(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UnreadableError(f"{path} is a folder: name the files of the configuration.")
        if not stat.S_ISREG(mode):
            raise UnreadableError(f"{path} is no regular file: write it to one, and name that.")
        with open(path, "rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise UnreadableError(f"Cannot read {path}: {error.strerror or 'it failed'}. Name a file that you may read.") from None
    except UnreadableError:
        raise
    except ValueError:
        raise UnreadableError("A path has a character that no file name may have: name a file.") from None
    if len(content) > LARGEST:
        raise UnreadableError(f"{path} is larger than {LARGEST // 1_000_000} MB: give a configuration, not its data or its log.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableError(f"{path} is binary, or no text in UTF-8: give a script or a configuration as text.") from None


def _all_assignments(text: str) -> bool:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and all(re.fullmatch(r"[A-Za-z_]\w*=[^ ()]*|[A-Za-z_]\w*=(\"[^\"]*\"|'[^']*')", line) for line in lines)


_TOLD = frozenset(catalog.VARIABLES) | ALSO_READ

# --- scripts -----------------------------------------------------------------------------------------------------------


def _script(name: str, text: str) -> Reading:
    script = shell.read(text, _TOLD)
    facts = _Facts.of(_directives(text), text)
    shared = [
        dataclasses.replace(pair, certain=pair.certain and document.certain)
        for document in script.documents
        if document.text.lstrip().startswith("{")
        for pair in pairs_of_json(document.text, None, line=document.line, strict=False)
    ]
    jobs = []
    for launch in script.launches:
        job = _launched(name, launch, shared, facts)
        if job is not None:
            jobs.append(job)
    if not jobs:
        pairs, _ = arguments.pairs(script.leftovers)
        left = _exports(script.environment) + pairs + shared
        jobs = [_job(left, name, text, facts=facts, whole=False)]
    return Reading(file=name, kind="script", jobs=jobs)


def _directives(text: str) -> list[Pair]:
    """What `#SBATCH` lines say of nodes and devices."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("#SBATCH"):
            continue
        for key, value in re.findall(r"--(nodes|gres|gpus-per-node|constraint|partition|ntasks-per-node)[= ](\S+)", line):
            if key == "nodes" and value.isdigit():
                found.append(Pair(("nodes",), value, number))
            count = re.search(r":(\d+)$|^(\d+)$", value)
            if key in ("gres", "gpus-per-node") and count and value.startswith(("gpu", *"0123456789", "h", "a", "b")):
                found.append(Pair(("gpus_per_node",), count[1] or count[2], number))
            if key in ("gres", "constraint", "gpus-per-node"):
                found.append(Pair(("gpu",), value.replace(":", " "), number))
    return found


def _exports(environment: Mapping[str, Token | None]) -> list[Pair]:
    return [
        Pair((name,), "" if token is None else token.text, None if token is None else token.line, token is None or token.certain)
        for name, token in environment.items()
    ]


def _launched(name: str, launch: shell.Launch, shared: list[Pair], facts: _Facts) -> Job | None:
    pairs, whole = arguments.pairs(launch.words)
    programs = dict(_programs(launch))
    known = [pair for pair in pairs if catalog.match(pair.path)]
    variables = _exports(launch.environment) + list(arguments.exported(launch.words))
    if not programs and not known and not any(pair.path[-1] in ("XLA_FLAGS",) for pair in variables):
        # A launcher script of its own may take everything from the environment; a helper has no business here.
        if not (
            re.fullmatch(r"(torchrun|srun|mpirun|accelerate|deepspeed|python[\d.]*)", launch.words[0].text.rsplit("/", 1)[-1])
        ):
            return None
        if not any(pair.path[-1] in catalog.VARIABLES for pair in variables):
            return None
    return _job(
        [*facts.pairs, *shared, *variables, *pairs], name, "", facts=facts, whole=whole, programs=programs, line=launch.line
    )


_PROGRAMS = (
    (re.compile(r"(^|[/_.-])megatron([/_.-]|$)|pretrain_\w+\.py$"), "megatron"),
    (re.compile(r"(^|[/.])torchtitan([/.]|$)|(^|/)run_train\.sh$"), "torchtitan"),
    (re.compile(r"(^|[/.])vllm(\.|$)"), "vllm"),
    (re.compile(r"(^|[/.])sglang(\.|$)"), "sglang"),
    (re.compile(r"(^|/)trtllm-\w+$"), "tensorrt_llm"),
    (re.compile(r"(^|/)deepspeed$"), "deepspeed"),
    (re.compile(r"(^|[/.])(MaxText|maxtext|axlearn)([/.]|$)"), "xla"),
)


def _programs(launch: shell.Launch) -> Iterator[tuple[str, str]]:
    for token in launch.words:
        if token.text.startswith("-"):
            continue
        for pattern, framework in _PROGRAMS:
            if pattern.search(token.text):
                yield framework, f"from its launcher on line {launch.line}"


# --- documents ---------------------------------------------------------------------------------------------------------


def _document(name: str, kind: str, pairs: list[Pair], text: str) -> Reading:
    """One job of all values, and one more for each command line that the file holds (Kubernetes, Compose)."""
    own = _job(_named_variables(pairs), name, text, kind=kind)
    given, facts = _variables_of(pairs), _Facts.of([], text)
    jobs = []
    for line, start in command_lines(pairs):
        read = shell.read(line, _TOLD, start)
        for launch in read.launches:
            job = _launched(name, launch, given, facts)
            if job is not None:
                jobs.append(job)
    return Reading(file=name, kind=kind, jobs=jobs or [own])


def _variables_of(pairs: list[Pair]) -> list[Pair]:
    """What a document gives to every program in it: variables of the environment, and the device."""
    names = {*catalog.VARIABLES, "XLA_FLAGS"}
    return [
        pair
        for pair in _named_variables(pairs)
        if pair.path and (pair.path[-1] in names or catalog.normal(pair.path[-1]) in _DEVICE_KEYS)
    ]


def _named_variables(pairs: list[Pair]) -> list[Pair]:
    """With `name: A` and `value: 1` of one entry, and words `A=1`, as variables, and names in lists as switches."""
    found: list[Pair] = []
    name: Pair | None = None
    for pair in pairs:
        last = pair.path[-1] if pair.path else ""
        if last == "name":
            name = pair
        elif last == "value" and name is not None and name.path[:-1] == pair.path[:-1]:
            if name.text in catalog.VARIABLES or name.text == "XLA_FLAGS":
                found.append(Pair((name.text,), pair.text, pair.line))
            name = None
        elif pair.listed:
            found += _words_of_list(pair)
        found.append(pair)
    return found


def _words_of_list(pair: Pair) -> Iterator[Pair]:
    for word in pair.text.split("\n"):
        variable, equals, text = word.partition("=")
        if equals and (variable in catalog.VARIABLES or variable == "XLA_FLAGS"):
            yield Pair((variable,), text, pair.line)
        elif (known := catalog.match((word.lstrip("-"),))) is not None and known[0].kind is Kind.FLAG:
            yield Pair((word.lstrip("-"),), "true", pair.line)


# --- settings ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    """What a text says beside its settings."""

    pairs: list[Pair]
    versions: dict[str, str]

    @staticmethod
    def of(pairs: list[Pair], text: str) -> _Facts:
        return _Facts(pairs, dict(_versions(text)))


_PINNED = re.compile(
    r"(?<![\w-])(deepspeed|vllm|sglang|torch|megatron-core|transformer[-_]engine|accelerate)(?:\[[\w,]+\])?==v?(\d+(?:\.\d+)*)"
)
_IMAGE = re.compile(r"(?:vllm/vllm-openai|lmsysorg/(sglang)):v?(\d+(?:\.\d+)+)")


def _versions(text: str) -> Iterator[tuple[str, str]]:
    for name, version in _PINNED.findall(text):
        yield name.replace("-", "_"), version
    for name, version in _IMAGE.findall(text):
        yield name or "vllm", version


_RELEASE = re.compile(r"\d{1,4}(\.\d{1,5}){1,3}")
_VERSION_KEYS = {
    f"{product}{suffix}": product
    for product in ("deepspeed", "vllm", "sglang", "torch", "megatron_core", "accelerate")
    for suffix in ("", "_version")
}
_CAPABILITY_KEYS = {"arch", "compute_capability", "torch_cuda_arch_list"}
_DEVICE_KEYS = {*_CAPABILITY_KEYS, "gpu", "gpu_type", "gpu_name", "accelerator_type", "accelerators", "device_model"}


def _job(
    pairs: Iterable[Pair],
    file: str,
    text: str,
    *,
    kind: str = "",
    facts: _Facts | None = None,
    whole: bool = True,
    programs: Mapping[str, str] | None = None,
    line: int | None = None,
) -> Job:
    settings: list[Setting] = []
    frameworks: dict[str, str] = dict(programs or {})
    capability: int | None = None
    amd = False
    hints: dict[str, str] = {}
    others: set[int] = set()
    pinned: dict[str, str] = {}
    parts: dict[tuple[str, int], set[tuple[tuple[str, ...], bool | int | float | str | None]]] = {}
    for pair in _with_flags(pairs):
        last = catalog.normal(pair.path[-1]) if pair.path else ""
        # `gpu: 8` counts devices; only a key that says so holds a compute capability.
        counted = last not in _CAPABILITY_KEYS and pair.text.strip("\"' ").isdigit()
        if last in _DEVICE_KEYS and pair.certain and not counted:
            capability = capability_of(pair.text) or capability
            amd |= is_amd(pair.text)
        if (product := _VERSION_KEYS.get(last)) and pair.certain and (number := _RELEASE.match(pair.text.strip("\"'v"))):
            pinned[product] = number[0]
        amd |= last in ("hip_visible_devices", "rocr_visible_devices")
        found = catalog.match(pair.path)
        if found is None:
            others.add(hash((pair.path, pair.text)))
            continue
        known, spelling, depth = found
        if (pair.text == "given" and known.kind is not Kind.PRESENT) or (pair.listed and known.kind is not Kind.WORD):
            continue
        place = Place(file=file, line=pair.line)
        spelled = spelling.rpartition(".")[2] if depth == 1 else spelling
        value = None if UNKNOWN in pair.text else value_of(known, pair.text)
        said = parts.setdefault((known.name, depth), set())
        said.add((pair.path[:-depth], value))
        if len({parent for parent, _ in said}) > 1 and len({other for _, other in said}) > 1:
            # Parts of one program (actor and rollout) say different things: which one is meant is not known.
            value = None
        settings.append(Setting(name=known.name, spelled=spelled, value=value, place=place, certain=pair.certain, depth=depth))
        hint = catalog.hint_of(known, spelling)
        if hint is not None and value not in (None, "none"):
            hints.setdefault(hint, f"from {spelled} ({place})")
    if any(setting.name == "strategy" and str(setting.value).startswith("fsdp") for setting in settings):
        # What is left of Megatron's names belongs to another part of the program (the rollout).
        hints.pop("megatron", None)
    if not frameworks:
        frameworks = hints
    elif "deepspeed" in hints or "xla" in hints:
        frameworks |= {name: how for name, how in hints.items() if name in ("deepspeed", "xla")}
    seen = {"script": whole, "": whole}.get(kind, True)
    covers = (
        frozenset(frameworks) if seen and kind in ("", "script") else frozenset(frameworks) & _WHOLE_FILES.get(kind, frozenset())
    )
    return Job(
        settings=settings,
        frameworks=frameworks,
        whole=covers | (frozenset({"deepspeed"}) & frozenset(frameworks)),
        capability=capability,
        amd=amd,
        versions={**pinned, **dict(_versions(text)), **(facts.versions if facts else {})},
        line=line,
        others=frozenset(others),
    )


_WHOLE_FILES = {
    "JSON": frozenset({"deepspeed", "vllm", "sglang"}),
    "YAML": frozenset({"deepspeed", "vllm", "sglang"}),
    "TOML": frozenset({"torchtitan"}),
}
"""Files that hold all switches of a framework. A recipe of Megatron-Bridge or NeMo has its defaults elsewhere."""


def _with_flags(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """With the switches that the value of XLA_FLAGS holds."""
    for pair in pairs:
        if pair.path and pair.path[-1] == "XLA_FLAGS":
            tokens = [Token(word, pair.certain, pair.line or 0) for word in pair.text.strip("\"'").split()]
            yield from (dataclasses.replace(inner, line=pair.line) for inner in arguments.pairs(tokens)[0])
        else:
            yield pair
