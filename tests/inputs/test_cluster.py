"""Clusters: the presets against the facts they are built from, changes on top of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from underlap import inputs
from underlap.cluster import Cluster
from underlap.documents import parse_document, read_document
from underlap.errors import InputError, OptionError

FACTS = Path(__file__).parents[3] / "shared/facts/hardware.yaml"
ROWS = {
    "dgx-a100": "A100-SXM4-80GB",
    "dgx-h100": "H100-SXM5-80GB",
    "dgx-h200": "H200-SXM5",
    "dgx-b200": "B200-SXM6",
    "gb200-nvl72": "GB200-NVL72 (per GPU)",
    "mi300x": "MI300X",
}


def changed(text: str) -> Cluster:
    return inputs.cluster_of_document(parse_document(text, "mine.yaml"), "mine.yaml")


def test_every_preset_is_compared_with_the_facts() -> None:
    assert sorted(ROWS) == list(inputs.presets("clusters"))


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_preset_has_the_figures_of_the_facts_in_one_direction_and_dense(name: str) -> None:
    document: Any = read_document(FACTS)
    row = next(row for row in document["accelerators"] if row["name"] == ROWS[name])
    cluster = inputs.cluster(name)
    processor, link, fabric = cluster.topology.processor, cluster.topology.scale_up, cluster.topology.scale_out

    assert fabric is not None
    peaks = {precision: row.get(f"{precision}_tflops") for precision in ("bf16", "fp8", "fp4")}
    found = {precision: processor.peak_flops.get(precision) for precision in peaks}
    assert found == {precision: peak and pytest.approx(peak * 1e12) for precision, peak in peaks.items()}
    assert processor.peak_flops["fp16"] == processor.peak_flops["bf16"]
    assert processor.sms == row.get("sms", row.get("cus"))
    # Tables round to whole GiB, drivers show a little less.
    assert processor.memory_bytes == pytest.approx(row["hbm_gb"] * 2**30, rel=0.011)
    assert processor.memory_bytes_per_s == row["hbm_GBps"] * 1e9
    assert link.bytes_per_s == row["scaleup_GBps_uni"] * 1e9 == row["scaleup_GBps_bidi"] * 1e9 / 2
    assert link.per_peer_bytes_per_s == (row["scaleup_GBps_uni_per_peer"] * 1e9 if "scaleup_GBps_uni_per_peer" in row else None)
    assert fabric.bytes_per_s == row["nic_GBps_uni"] * 1e9
    assert cluster.topology.domain == row["scaleup_domain"] == cluster.gpus


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_number_of_a_preset_names_its_source(name: str) -> None:
    sources = inputs.cluster(name).sources

    assert len(sources) >= 16
    assert [path for path, source in sources.items() if not source.startswith(f"{name}: ")] == []


def test_a_change_replaces_its_values_and_keeps_the_others_with_their_sources() -> None:
    base = inputs.cluster("dgx-h100")
    mine = changed(
        "from: dgx-h100\ngpus: 64\nscale_out: {bandwidth: {value: 200 Gbit/s, source: our own switches}, latency_ns: 4000}"
    )

    assert mine.name == "dgx-h100 as changed by mine.yaml"
    assert (mine.gpus, mine.domains) == (64, 8)
    assert mine.topology.scale_out is not None
    assert (mine.topology.scale_out.bytes_per_s, mine.topology.scale_out.latency_ns) == (25e9, 4000)
    assert mine.sources["scale_out.bandwidth"] == "mine.yaml: our own switches"
    assert mine.sources["scale_out.latency"] == "mine.yaml"
    assert mine.sources["processor.memory"] == base.sources["processor.memory"]
    assert mine.topology.processor == base.topology.processor


def test_a_machine_without_a_fabric_has_one_domain() -> None:
    alone = changed("from: dgx-h100\nscale_out: null")

    assert alone.topology.scale_out is None
    with pytest.raises(OptionError, match="16 GPUs, but one domain of 8 only"):
        alone.with_gpus(16)
    assert inputs.cluster("dgx-h100").with_gpus(16).domains == 2


def test_a_peak_that_is_not_known_is_not_guessed() -> None:
    assert inputs.cluster("dgx-h100").peak_flops("fp8") == 1979e12
    with pytest.raises(OptionError, match="no peak is known for precision=fp4: known: bf16, fp16, fp8"):
        inputs.cluster("dgx-h100").peak_flops("fp4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from: dgx-h10", "mine.yaml at $.from: no preset 'dgx-h10': did you mean 'dgx-h100'?"),
        (
            "from: dgx-h100\nscale_up: {bandwidth: 900 GB/s bidi}",
            "mine.yaml at $.scale_up.bandwidth: '900 GB/s bidi' adds both directions",
        ),
        ("from: dgx-h100\nscale_up: {bandwidth: 450}", "mine.yaml at $.scale_up.bandwidth: 450 has no unit"),
        ("from: dgx-h100\nscale_up: {bytes_per_s: 450 GB/s}", "mine.yaml at $.scale_up.bytes_per_s: expected a plain number"),
        (
            "from: dgx-h100\nscale_up: {bandwith: 450 GB/s}",
            "mine.yaml at $.scale_up: unknown field 'bandwith': did you mean 'bandwidth'?",
        ),
        ("from: dgx-h100\nprocessor: {memory: 80 Gb}", "mine.yaml at $.processor.memory: '80 Gb' is in bits"),
        (
            "from: dgx-h100\nprocessor: {peak_flops: {bf15: 1 TFLOP/s}}",
            "mine.yaml at $.processor.peak_flops: unknown precision 'bf15'",
        ),
        (
            "from: dgx-h100\nscale_out: null\ngpus: 64",
            "mine.yaml at $: dgx-h100 as changed by mine.yaml: 64 GPUs, but one domain of 8",
        ),
        (
            "from: dgx-h100\nscale_up: {latency: 3 us, latency_ns: 4}",
            "mine.yaml at $.scale_up.latency_ns: latency is given twice",
        ),
        (
            "from: dgx-h100\nscale_up: {switched: 3}",
            "mine.yaml at $.scale_up.switched: expected true or false, got a whole number (3)",
        ),
        ("from: dgx-h100\noversubscription: 0.5", "mine.yaml: oversubscription is 0.5: expected 1 (a full fabric) or more"),
        (
            "from: mi300x\nscale_up: {per_peer: 500 GB/s}",
            "mine.yaml: scale_up.per_peer: expected more than 0 and at most the bandwidth",
        ),
        (
            "name: x\ngpus: 3",
            "mine.yaml at $.processor: name, architecture, sms, peak_flops, memory, memory_bandwidth, copy_engines, launch",
        ),
        ("[]", "mine.yaml: expected a mapping with processor, scale_up and scale_out, or from: and what differs"),
    ],
)
def test_a_cluster_that_does_not_fit_names_file_path_and_remedy(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        changed(text)

    assert str(caught.value).startswith(message)
