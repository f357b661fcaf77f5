"""All rules, by topic. docs/lint.md has them as a table."""

from underlap.lint.rule import Rule
from underlap.lint.rules import batches, connections, deepspeed, expert_parallel, megatron, pytorch, runtime, serving, xla

RULES: tuple[Rule, ...] = (
    *connections.RULES,
    *runtime.RULES,
    *megatron.RULES,
    *expert_parallel.RULES,
    *batches.RULES,
    *pytorch.RULES,
    *deepspeed.RULES,
    *serving.RULES,
    *xla.RULES,
)
