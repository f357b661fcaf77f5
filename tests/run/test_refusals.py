"""What `underlap run` refuses before a process is started: one line, exit code 2, nothing of the environment shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch", reason="torch is not installed: make test, or pip install -e .[run]")

from underlap import inputs
from underlap.cli import main
from underlap.errors import OptionError
from underlap.planner import plan as planned
from underlap.run.ceilings import check_ceilings, measurable
from underlap.run.fabric_spec import fabric_spec

TRAIN = "train,gbs=4,mbs=2,seq=64,precision=fp32"


def refused(*more: str, model: str = "tiny-dense", layout: str = "tp=2", workload: str = TRAIN) -> str:
    asked = ["run", "--model", model, "--layout", layout, "--workload", workload, "--share-cores", *more]
    result: Result = CliRunner().invoke(main, asked)
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1, lines
    return lines[0]


def test_a_folder_for_records_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert f"record: {tmp_path / 'file' / 'x'}: no folder can be made there" in refused("--record", str(tmp_path / "file" / "x"))


def test_records_of_an_earlier_run_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    (tmp_path / "baseline").mkdir()
    (tmp_path / "baseline" / "rank1.json").write_text("{}")

    assert "has records of an earlier run (baseline): name another one, or pass --force" in refused("--record", str(tmp_path))
    assert (tmp_path / "baseline" / "rank1.json").exists()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "sekret", "WORLD_SIZE": "2"}, "RANK: expected a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "sekret"}, "WORLD_SIZE: expected a whole number"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "expected a rank from 0 to one less than the number of ranks"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "expected a rank from 0 to one less than the number of ranks"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "sekret"}, "MASTER_PORT: expected a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "99999999"}, "MASTER_PORT: expected a port from 1 to 65535"),
        ({"SLURM_PROCID": "sekret", "SLURM_NTASKS": "2"}, "SLURM_PROCID: expected a whole number"),
    ],
)
def test_variables_that_no_launcher_sets_are_named_without_their_value(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = refused()

    assert said in found
    assert "sekret" not in found


def test_another_number_of_ranks_than_torchrun_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert "nproc: 3, but 2 ranks were started by torchrun or srun: leave --nproc out" in refused("--nproc", "3")


def test_a_model_that_does_not_fit_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path.read_text
    small = "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda path, **how: small if str(path) == "/proc/meminfo" else text(path, **how))

    assert "GiB for weights, states and activations of all ranks" in refused()


@pytest.mark.parametrize(
    ("model", "workload", "why"),
    [
        ("tiny-moe", TRAIN, "rows per expert are known by what is received"),
        ("tiny-dense", "decode,batch=2,context=32,precision=fp32", "a decode goes on from tokens that it chose"),
    ],
)
def test_ceilings_are_refused_where_a_step_cannot_go_on_without_what_it_receives(model: str, workload: str, why: str) -> None:
    layout = "dp=2,ep=2" if model == "tiny-moe" else "tp=2"

    assert f"ceilings: {why}: leave --ceilings out" in refused("--ceilings", model=model, layout=layout, workload=workload)


def test_transfers_are_halved_over_links_of_a_rate_only() -> None:
    plan = planned(inputs.model("tiny-dense"), inputs.layout("tp=2"), inputs.workload(TRAIN), domain=2)
    assert measurable(None) == measurable(fabric_spec("500mbit,rank1=unshaped")) == ("waits", "messages")
    assert "half_transfers" in measurable(fabric_spec("500mbit,rank1=250mbit"))

    with pytest.raises(OptionError, match="half_transfers needs links that all have a rate"):
        check_ceilings(["half_transfers"], plan, inputs.workload(TRAIN), "cpu", None)
