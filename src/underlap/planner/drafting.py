"""Writing blocks: operations in issue order, and the buffers they name.

Buffers are given as text: `hidden+1` is the instance of the next layer. A collective is drafted as its issue directly
followed by its wait: the plan in which nothing overlaps, which passes start from.
"""

from __future__ import annotations

from underlap.cost.work import ComputeWork, Transfer
from underlap.plan import Access, Block, Buffer, Group, Operation, OpKind, Scope

WHOLE = (0, 1)


class Draft:
    """The blocks and buffers of a plan in the making."""

    def __init__(self, groups: dict[str, Group], activation: str) -> None:
        self.groups = groups
        self.activation = activation
        self.buffers: dict[str, Buffer] = {}
        self.blocks: dict[str, Block] = {}
        self.phase = "forward"
        self.slot = 0
        self.instead: dict[str, str] = {}
        """Names that operations use in place of others: what is made again, and was kept, is made beside it."""
        self._operations: list[Operation] = []

    def buffer(
        self,
        name: str,
        *shape: int,
        scope: Scope = Scope.ACTIVATION,
        dtype: str | None = None,
        persistent: bool = False,
        pool: str | None = None,
        expected: bool = False,
    ) -> str:
        """Declare a buffer; again is fine where it says the same. Returns its name."""
        made = Buffer(
            name=name,
            shape=shape,
            dtype=dtype or self.activation,
            scope=scope,
            persistent=persistent,
            pool=pool,
            expected=expected,
        )
        assert self.buffers.setdefault(name, made) == made, f"{name} is declared twice, differently"
        return name

    def compute(
        self,
        role: str,
        work: ComputeWork,
        reads: str,
        writes: str,
        *,
        phase: str | None = None,
        part: tuple[int, int] = WHOLE,
    ) -> None:
        """Append an operation of the compute lane; part is (i, n) for the i-th of n parts of one."""
        self._operations.append(
            Operation(
                role=role,
                phase=phase or self.phase,
                work=work,
                reads=self._accesses(reads),
                writes=self._accesses(writes),
                slot=self.slot,
                part=part[0],
                parts=part[1],
            )
        )

    def issue(
        self,
        role: str,
        group: str,
        work: Transfer,
        reads: str,
        writes: str,
        *,
        channel: str | None = None,
        part: tuple[int, int] = WHOLE,
    ) -> None:
        """Append the first half of a collective."""
        self._operations.append(
            Operation(
                role=role,
                phase=self.phase,
                kind=OpKind.ISSUE,
                group=group,
                channel=channel,
                work=work,
                reads=self._accesses(reads),
                writes=self._accesses(writes),
                slot=self.slot,
                part=part[0],
                parts=part[1],
            )
        )

    def wait(self, role: str, *, part: tuple[int, int] = WHOLE) -> None:
        """Append the second half of a collective."""
        self._operations.append(
            Operation(role=role, phase=self.phase, kind=OpKind.WAIT, slot=self.slot, part=part[0], parts=part[1])
        )

    def collective(self, role: str, group: str, collective: str, payload: float, reads: str, writes: str) -> None:
        """Append a collective that is waited for at once. A group of one rank needs none: then nothing is appended."""
        made = self.groups[group]
        if made.size == 1:
            return
        self.issue(role, group, self.transfer(group, collective, payload), reads, writes)
        self.wait(role)

    def transfer(self, group: str, collective: str, payload: float, *, uneven: float = 1.0) -> Transfer:
        """The work of a collective over all of the group's ranks."""
        made = self.groups[group]
        return Transfer(
            collective=collective,
            payload_bytes=payload,
            ranks=made.size,
            span=(made.ranks_per_domain, made.domains),
            uneven=uneven,
        )

    def message(self, group: str, payload: float, *, parts: int = 1) -> Transfer:
        """The work of a message between neighbors of a group: over the fabric where any two neighbors are.

        `parts`: ranks that all hold the payload, of which each sends a part.
        """
        return Transfer(
            collective="send",
            payload_bytes=payload / parts,
            ranks=2,
            span=(1, 2) if self.groups[group].domains > 1 else (2, 1),
            gathered=parts,
        )

    def close(self, name: str) -> None:
        """Make a block of what was appended since the last one."""
        self.blocks[name] = Block(name=name, operations=tuple(self._operations))
        self._operations = []

    def _accesses(self, names: str) -> tuple[Access, ...]:
        found = (word.partition("+") for word in names.split())
        return tuple(Access(self.instead.get(name, name), int(offset or 0)) for name, _, offset in found)
