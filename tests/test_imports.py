"""What `import underlap` costs: nothing heavy is loaded before it is used."""

import subprocess
import sys

HEAVY = ("click", "jinja2", "msgspec", "numpy", "pandas", "polars", "pyarrow", "rich", "torch", "yaml")


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after the statement."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_no_heavy_module() -> None:
    assert modules_after("import underlap").isdisjoint(HEAVY)


def test_a_noun_loads_its_own_module_on_first_use() -> None:
    loaded = modules_after("import underlap\nunderlap.Timeline")

    assert "underlap.timeline" in loaded
    assert "underlap.report" not in loaded


def test_only_a_run_loads_torch() -> None:
    flows = "import underlap.flows.run, underlap.flows.simulate, underlap.flows.analyze, underlap.run.program, underlap.trial"

    assert modules_after(flows).isdisjoint({"torch"})


def test_the_command_line_loads_neither_torch_nor_pandas() -> None:
    assert modules_after("import underlap.cli").isdisjoint({"torch", "pandas", "polars", "pyarrow"})
