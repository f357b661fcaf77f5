"""YAML that people write: plain values are read; whatever could hide or explode is refused, with the line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.inputs.drawn import is_one_line, refusal
from underlap import inputs
from underlap.documents import LARGEST_BYTES, decode, parse_document, read_document
from underlap.errors import InputError, UnreadableError
from underlap.model import Model
from underlap.workload import Workload


def test_an_empty_document_holds_nothing() -> None:
    assert parse_document("", "job.yaml") is None


def test_plain_values_keep_their_types_and_dates_stay_text() -> None:
    text = "a: 1\nb: 2.5\nc: yes\nd: text\ne: null\nf: [1, {g: 2}]\nh: 2026-11-29"

    assert parse_document(text, "job.yaml") == {
        "a": 1,
        "b": 2.5,
        "c": True,
        "d": "text",
        "e": None,
        "f": [1, {"g": 2}],
        "h": "2026-11-29",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "job.yaml, line 1, column 5: not YAML: "),
        ("a: 1\na: 2", "job.yaml, line 2, column 1: not YAML: the key 'a' is given twice"),
        ("a: &x [1]\nb: *x", "job.yaml, line 2: an alias (*x): anchors and aliases are not read; write the value out"),
        (
            "a: !!python/object:os.system x",
            "job.yaml, line 1: the tag 'tag:yaml.org,2002:python/object:os.system': tags are not read",
        ),
        ("[" * 100 + "]" * 100, "job.yaml, line 1: nested deeper than 40 levels: expected a flat document"),
        ("a: " + "9" * 5000, "job.yaml: not YAML: 'Exceeds the limit"),
        ("a: \x00", "job.yaml: not YAML: 'unacceptable character"),
        ("a: 1\n---\nb: 2", "job.yaml, line 2, column 1: not YAML: but found another document"),
        ("? [1, 2]\n: 3", "job.yaml, line 1, column 3: not YAML: found unhashable key"),
        ("\n".join("- x" for _ in range(50_001)), "job.yaml, line 50000: more than 50000 values: expected a short document"),
    ],
)
def test_what_could_hide_or_explode_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_document(text, "job.yaml")

    assert str(caught.value).startswith(message)


@given(st.text())
@example("&a [*a]")
@example("{? {}: 1}")
@example("=")
@example("<<: 3")
def test_any_text_is_a_document_or_one_line_of_error(text: str) -> None:
    assert is_one_line(refusal(parse_document, text, "job.yaml"), "job.yaml")


def test_a_file_that_is_missing_a_folder_or_huge_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"no\.yaml: cannot be read \(No such file or directory\)"):
        read_document(tmp_path / "no.yaml")
    with pytest.raises(UnreadableError, match="is a folder"):
        read_document(tmp_path)
    with pytest.raises(UnreadableError, match="cannot be read"):
        read_document("a\0.yaml")
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * (LARGEST_BYTES + 1))
    with pytest.raises(InputError, match=r"huge\.yaml: larger than 4 MiB"):
        read_document(huge)
    huge.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match=r"huge\.yaml: byte 0 is not UTF-8"):
        read_document(huge)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ({"kind": "train", "gbs": 4}, Workload, "job.yaml at $.workload: the field 'seq' is missing"),
        (
            {"kind": "train", "gbs": "4", "seq": 1},
            Workload,
            "job.yaml at $.workload.gbs: expected a whole number, got text ('4')",
        ),
        (
            {"kind": "trian"},
            Workload,
            "job.yaml at $.workload.kind: unknown value 'trian': did you mean 'train'? Known: train, prefill, decode",
        ),
        ({"kind": "train", "gbss": 4}, Workload, "job.yaml at $.workload: unknown field 'gbss': did you mean 'gbs'?"),
        ({"kind": "train", "gbs": 4, "seq": 0}, Workload, "job.yaml at $.workload: seq is 0: expected 1 to"),
        (
            {"kind": "decode", "batch": 1, "context": 1, "precision": "bf17"},
            Workload,
            "job.yaml at $.workload.precision: unknown value 'bf17'",
        ),
        (
            {"name": "x", "experts": {"cout": 3}},
            Model,
            "job.yaml at $.workload.experts: unknown field 'cout': did you mean 'count'?",
        ),
        ([1], Workload, "job.yaml at $.workload: expected a mapping, got a list"),
    ],
)
def test_a_record_that_does_not_fit_names_file_path_and_remedy(value: object, kind: type, message: str) -> None:
    with pytest.raises(InputError) as caught:
        decode(value, kind, "job.yaml", "$.workload")

    assert str(caught.value).startswith(message)


def test_every_noun_is_read_from_a_file(tmp_path: Path) -> None:
    def file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    assert inputs.layout(file("layout.yaml", "tp: 8\nsp: true\norder: [tp, cp, fsdp, dp, pp]\n")).order == (
        "tp",
        "cp",
        "fsdp",
        "dp",
        "pp",
    )
    assert inputs.layout(file("text.yaml", "tp=8,sp\n")).tp == 8
    assert inputs.workload(file("workload.yml", "kind: train\ngbs: 8\nseq: 128\n")) == inputs.workload("train,gbs=8,seq=128")
    policy = inputs.policy(file("policy.yaml", "dp: ['bucket:25MB', copy_engine]\ntp: split_batch\n"))
    assert policy == inputs.policy("dp=bucket:25MB+copy_engine,tp=split_batch")
    assert inputs.policy(file("nothing.yaml", "")) == inputs.policy("")
    assert inputs.cluster(file("cluster.yaml", "from: dgx-h100\ngpus: 64\n")).gpus == 64
    model = file(
        "model.yaml", "name: x\nhidden: 64\nlayers: 2\nheads: 4\nkv_heads: 4\nhead_dim: 16\nintermediate: 64\nvocab: 32\n"
    )
    assert inputs.model(model).source == model


def test_an_error_of_a_policy_file_names_the_axis(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    for text, message in (
        ("tp: [spilt_batch]", "at $.tp: tp=spilt_batch: no such pass: did you mean 'split_batch'?"),
        ("tp: 3", "at $.tp: 3: expected a list of passes"),
        ("xp: []", "at $: unknown field 'xp'"),
        ("[]", "at $: expected a mapping from axis to passes"),
        ("tp: ['bucket:1MB']", "at $: tp=bucket: bucket is known for fsdp, dp"),
    ):
        file.write_text(text)
        with pytest.raises(InputError) as caught:
            inputs.policy(str(file))
        assert str(caught.value).startswith(f"{file} {message}")


@pytest.mark.parametrize("noun", [inputs.model, inputs.cluster])
def test_a_file_that_names_itself_is_refused(noun: Callable[[str], object], tmp_path: Path) -> None:
    file = tmp_path / "self.yaml"
    file.write_text(str(file))

    with pytest.raises(InputError, match="expected a mapping of fields, got the text"):
        noun(str(file))


def test_a_path_with_a_line_break_is_shown_in_one_line() -> None:
    assert (
        refusal(inputs.layout, "a\nb.yaml")
        == r"'a\nb.yaml': cannot be read (No such file or directory): expected a YAML or JSON file"
    )
