"""The command line in this process, with stand-ins for the flows."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from tests.cli.stubbed import Flows
from underlap.cli import main


@pytest.fixture
def flows(monkeypatch):
    flows = Flows()
    for name, module in flows.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return flows


@pytest.fixture
def run(flows, tmp_path, monkeypatch):
    """Run underlap in an empty folder that holds traces/, trace.json, and a job's train.sh and job.env."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    (tmp_path / "trace.json").write_text("{}")
    (tmp_path / "train.sh").write_text("torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --sequence-parallel\n")
    (tmp_path / "job.env").write_text("CUDA_DEVICE_MAX_CONNECTIONS=1\n")
    return lambda *words: CliRunner().invoke(main, words, prog_name="underlap")
