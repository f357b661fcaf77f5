"""`Report`: what a Timeline means. The JSON that `underlap analyze --json` writes *is* this record.

Schema `underlap.report/1` grows by adding only; readers ignore keys that they do not know. Durations are integer
nanoseconds. Points in time are nanoseconds relative to `origin_ns`, which is a string because it can exceed 2^53.
What is not known is null. docs/report.md is generated from these types and says what each field means.
"""

# long because: it is the schema, and its documentation is made from it.
from __future__ import annotations

import msgspec

SCHEMA = "underlap.report/1"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the records below, which repeat its options: msgspec does not inherit kw_only, nor mypy frozen."""


class Source(Record, frozen=True, kw_only=True):
    """A file that was read."""

    file: str
    """Base name only: a folder can hold what should not travel."""
    ranks: list[int]
    rank_source: str
    """distributedInfo, file name, process order, or assumed."""
    world_size: int | None
    resolution_ns: int
    """1000 where the trace has whole microseconds only."""
    on_cpu: bool
    device_model: str | None
    coordinates: dict[str, int] = {}
    """Mesh coordinates in the file's name, such as tp: 1, where the file names no rank."""


class Provenance(Record, frozen=True, kw_only=True):
    """Where the figures come from."""

    kind: str
    """measured or simulated."""
    underlap_version: str
    sources: list[Source]
    ranks_counted: list[int]
    world_size: int | None
    """Null where no source says it."""


class Window(Record, frozen=True, kw_only=True):
    """The stretch of time that every figure below is about."""

    kind: str
    """whole: first to last device event. steps: the steps listed. Cut at the border, per rank and device."""
    definition: str
    """In words, with the reason for the choice."""
    steps_found: list[str]
    steps_used: list[str]
    outside_ns: int
    """Device-busy time (union per device, summed over ranks) that lies outside the window."""


class RankRow(Record, frozen=True, kw_only=True):
    """One device of one rank. compute + fused + exposed + copy + idle = span, exactly."""

    rank: int
    device: int
    source_file: str
    """The file that it was read from."""
    start_ns: int
    end_ns: int
    span_ns: int
    """Length of the window on this device (wall)."""
    compute_ns: int
    """Union of compute kernels."""
    fused_ns: int
    """Union of kernels that compute and communicate, outside compute."""
    communication_ns: int
    """Union of communication kernels: hidden + under_fused + exposed."""
    hidden_ns: int
    """Communication while compute runs."""
    under_fused_ns: int
    """Communication while a fused kernel and no compute runs."""
    exposed_ns: int
    """Communication while neither runs."""
    copy_ns: int
    """Copies and memsets while none of the above runs."""
    idle_ns: int
    """The rest."""
    hidden_share: float | None
    """hidden / communication, as kernel time: waiting for peers is inside both. Null without communication."""
    compute_kernels: int
    communication_kernels: int
    fused_kernels: int
    copies: int
    wait_ns: int | None = None
    """Waiting for a peer inside communication: hidden_wait + exposed_wait (+ under fused). Null where calls cannot be matched."""
    hidden_transfer_ns: int | None = None
    hidden_wait_ns: int | None = None
    exposed_transfer_ns: int | None = None
    exposed_wait_ns: int | None = None
    hidden_transfer_share: float | None = None
    """hidden_transfer / transfer: the headline where waiting is known. Null where it is not, or nothing was transferred."""
    clock_uncertainty_ns: int | None = None
    """Of every figure that compares this rank with others: the residual of its clock. Null where ranks were not compared."""
    idle_causes: dict[str, int] = {}
    """Why it is idle, in ns (docs/verdicts.md): adds up to idle_ns. Largest first."""


class PartSummary(Record, frozen=True, kw_only=True):
    """One figure of the rows of `ranks`, over all rows: the screen shows it as it is."""

    mean_ns: int
    """Sum over the rows / number of rows, rounded to the nearest."""
    min_ns: int
    max_ns: int
    share_of_span: float | None
    """Sum over the rows / sum of their spans. Null where the spans are 0."""


class Summary(Record, frozen=True, kw_only=True):
    """All rows of `ranks` together. The means of compute, fused, exposed, copy and idle add up to that of span (rounded)."""

    span: PartSummary
    compute: PartSummary
    fused: PartSummary
    communication: PartSummary
    hidden: PartSummary
    under_fused: PartSummary
    exposed: PartSummary
    copy: PartSummary
    idle: PartSummary
    hidden_share: float | None
    """Sum of hidden / sum of communication, as kernel time: waiting for peers is inside both. Null without communication."""
    most_exposed_rank: int | None
    """Rank of the row with the largest exposed_ns (the first of equals). Null where no row has exposed communication."""
    wait: PartSummary | None = None
    """Waiting for peers inside communication. Null unless known for every row with communication."""
    hidden_transfer_share: float | None = None
    """Sum of hidden_transfer / sum of transfer: the headline share where waiting is known."""
    unmatched_ns: int
    """Sum of total_ns over `unmatched`: all rows together, not a mean."""
    unmatched_kernels: int


class Evidence(Record, frozen=True, kw_only=True):
    """One event that a statement rests on."""

    rank: int
    source_file: str
    source_row: int
    """Position among the events of the source file."""
    name: str


class CauseRow(Record, frozen=True, kw_only=True):
    """Exposed time with one cause (docs/verdicts.md), summed over ranks. The rows of a list add up to its exposed time; those of
    a family to its exposed_share_ns but for some ns, as slices that several families share are split piece by piece."""

    cause: str
    exposed_ns: int
    share: float
    """Of the exposed time."""
    inherited: dict[str, int] = {}
    """For queued_behind, stretched, latency_bound and fabric_bound: what would be the causes without it, in ns."""


class IdleCauseRow(Record, frozen=True, kw_only=True):
    """Idle time with one cause (docs/verdicts.md), summed over ranks. The rows add up to the ranks' idle_ns."""

    cause: str
    idle_ns: int
    share: float
    """Of the idle time."""


class NetGainReport(Record, frozen=True, kw_only=True):
    """hidden - (compute - compute alone) - (communication - communication alone), in device time; not what the step gains."""

    word: str
    """gain, gain at most (what communication loses is unknown), loss, or not established."""
    reason: str | None
    hidden_ns: int
    compute_cost_ns: int | None
    communication_cost_ns: int | None
    net_ns: int | None
    net_low_ns: int | None
    net_high_ns: int | None


class Verdict(Record, frozen=True, kw_only=True):
    """What happened to a family, why, and what would change it."""

    outcome: str
    """hidden, partly hidden, exposed, fused, or a loss (hiding it cost more device time than it hid)."""
    cause: str | None
    """The cause of most of the exposed time. Null where nothing is exposed."""
    causes: list[CauseRow]
    evidence: Evidence | None
    """The largest slice of that cause."""
    recoverable_ns: int | None
    """At most so much, summed over ranks: the exposed time of the first cause. An upper bound, not a promise."""
    would_change: str | None
    price: str | None
    unknown: list[str]
    """What is not known, and what would tell."""
    net_gain: NetGainReport | None = None
    """What is left of hiding this family. Null where nothing of it is hidden, or contention was not looked for."""
    loss: str | None = None
    """The outcome a loss in words, with its figures. Null for any other outcome."""
    rules: list[str] = []
    """Rules of `underlap lint` that hold for the configuration given with --config, and account for `cause` here."""


class FamilyRow(Record, frozen=True, kw_only=True):
    """All calls of one collective on one axis. Times and bytes are summed over `ranks_counted` ranks."""

    axis: str | None
    """Mesh dimension, or several joined by ' x ' (dp x cp). Null where unknown."""
    axis_source: str | None
    """group description, mesh option, or inferred (...). Null where unknown."""
    axis_candidates: list[str]
    """Where the axis is not known: what it could be."""
    collective: str | None
    library: list[str]
    """nccl, gloo, deepep, ..."""
    ranks_counted: int
    count: int | None
    """Instances: one call counts once for its whole group. Null where calls of different ranks cannot be matched."""
    kernels: int
    payload_bytes: int | None
    """Null unless known for every call."""
    payload_known_share: float
    """Share of the kernel time in calls whose payload is known."""
    communication_ns: int
    """Union of the family's kernels per device, without fused ones."""
    fused_ns: int
    """Union of its kernels that also compute."""
    hidden_ns: int
    under_fused_ns: int
    exposed_ns: int
    exposed_share_ns: int
    """Like exposed_ns, but a slice with several families in it is split equally: this column adds up to the ranks' exposed_ns."""
    mean_communication_ns: int
    """communication_ns / number of rows of `ranks` (those without this family count as 0), rounded to the nearest."""
    mean_exposed_share_ns: int
    """exposed_share_ns / number of rows of `ranks`: this column adds up to the mean of exposed, but for rounding."""
    mean_payload_bytes: int | None
    """payload_bytes / number of rows of `ranks`. Null where payload_bytes is."""
    hidden_share: float | None
    """hidden / communication, as kernel time."""
    busbw_kernel_gbps: float | None
    """Bus bandwidth (factors as nccl-tests) in GB/s of 10^9 bytes, over kernel time, which contains waiting: a lower bound."""
    busbw_gbps: float | None = None
    """The same over transfer time, of the calls whose waiting is known."""
    wait_ns: int | None = None
    """Waiting for a peer inside communication: hidden_wait + exposed_wait (+ under fused). Null where calls cannot be matched."""
    hidden_transfer_ns: int | None = None
    hidden_wait_ns: int | None = None
    exposed_transfer_ns: int | None = None
    exposed_wait_ns: int | None = None
    hidden_transfer_share: float | None = None
    """hidden_transfer / transfer: the headline where waiting is known. Null where it is not, or nothing was transferred."""
    borrowed: list[str] = []
    """What of its calls comes from the recording given with --like: group, payload_bytes, ... Not measured in this trace."""
    transfer_at_most_ns: int | None = None
    """One rank only: the sum over calls of the shortest call of equal size, an upper bound of the transfer. Null if matched."""
    verdict: Verdict | None = None
    sizes: list[SizeRow] = []
    """Calls by payload, smallest first; those of unknown payload are in none."""
    issue: IssueRow | None = None
    """Null for families that only occur on CPU ranks, which launch nothing, or inside fused kernels."""


class StepRow(Record, frozen=True, kw_only=True):
    """One step on one device. The parts add up to span_ns as in RankRow."""

    step: str
    rank: int
    device: int
    start_ns: int
    end_ns: int
    span_ns: int
    compute_ns: int
    fused_ns: int
    communication_ns: int
    hidden_ns: int
    under_fused_ns: int
    exposed_ns: int
    copy_ns: int
    idle_ns: int
    used: bool
    """Whether the window contains it."""


class StepSummary(Record, frozen=True, kw_only=True):
    """How much the used steps vary, over ranks and steps."""

    count: int
    median_ns: int
    min_ns: int
    max_ns: int
    slowest_step: str
    slowest_rank: int


class LaneRow(Record, frozen=True, kw_only=True):
    """One stream (or thread of a CPU rank): unions per class inside the window."""

    rank: int
    device: int
    lane: str
    compute_ns: int
    fused_ns: int
    communication_ns: int
    copy_ns: int


class InstanceRow(Record, frozen=True, kw_only=True):
    """One call of a collective on one rank."""

    rank: int
    device: int
    lane: str
    axis: str | None
    collective: str | None
    library: str
    group: str | None
    group_size: int | None
    sequence: int | None
    dtype: str | None
    payload_bytes: int | None
    start_ns: int
    end_ns: int
    duration_ns: int
    """Sum over its kernels."""
    hidden_ns: int
    exposed_ns: int
    launch_ns: int | None
    lead_ns: int | None = None
    """From its launch to the beginning of its exposed part. Null where nothing is exposed or the launch is unknown."""
    held_ns: int | None = None
    """From its launch to its start, where that is longer than usual on the device. Null where it started at once."""
    behind: str | None = None
    """For a held call: the kernel or copy that ended last before its start; one of its own lane if that ended right before."""
    call_site: str | None
    """The operator or annotation that issued it."""
    step: str | None
    kernel: str
    wait_ns: int | None = None
    """From its start to the last arrival that it needed. Null where that is unknown."""
    meets: int | None = None
    """Number of the meeting: calls of different ranks with the same number are one collective. Null where not matched."""
    borrowed: str | None = None
    """Which of collective, group, dtype, payload_bytes, peer (joined by ", ") come from the recording given with --like: not
    measured here. Null for none."""
    outlier: bool
    """Longer than 3x the median of the same family and payload (at least 4 calls of known size)."""
    source_file: str
    source_row: int
    """Position of its first kernel among the events of the source file, from 0."""
    perfetto_ts: str
    """Its start as Perfetto's slice table has it, in ns: `select * from slice where ts = ...`, or visStart in a link."""


class ClockRow(Record, frozen=True, kw_only=True):
    """A rank's clock against the others', from the ends of collectives that end together."""

    rank: int
    offset_ns: int
    """Added to its times. 0 where its clock agrees with the others'."""
    drift_ppb: int
    residual_ns: int | None
    """What is left unexplained: the uncertainty of every figure across ranks. Null where nothing was compared."""
    component: int
    """Ranks of different components share no collective; their times cannot be compared."""


class LateRow(Record, frozen=True, kw_only=True):
    """A rank that others waited for, over all families; pipeline bubbles blame nobody."""

    rank: int
    times_last: int
    of: int
    """Instances with a known last rank."""
    caused_wait_ns: int
    """Waiting of all ranks for it, its late entry into the window apart."""
    entry_wait_ns: int
    """Waiting of all ranks for it because it entered the window late; the reason lies before the window."""
    causes: dict[str, int]
    """Why it was late, in ns, from its own lanes; they add up to its lateness."""
    first_cause: str | None
    straggler: bool
    """Late in so many steps that chance does not explain it. One step never makes a straggler."""
    how: str
    """How that was decided."""


class BubbleRow(Record, frozen=True, kw_only=True):
    """The pipeline bubble of a group: what its stages wait for each other."""

    group: str | None
    stages: int | None
    micro_batches: int | None
    ideal_share: float | None
    """(p-1)/(m+p-1) of the step, for plain 1F1B and GPipe. Null where p or m is unknown."""
    waiting_share: dict[str, float]
    """Rank -> share of its steps in which it waits for another stage."""
    waiting_ns: dict[str, int] = {}
    """Rank -> the same in nanoseconds, summed over its steps."""
    how: str


class FindingRow(Record, frozen=True, kw_only=True):
    """Something worth acting on, most recoverable time first."""

    text: str
    axis: str | None
    collective: str | None
    cause: str
    exposed_ns: int
    """Summed over ranks."""
    share_of_window: float
    would_change: str | None
    price: str | None


class SizeRow(Record, frozen=True, kw_only=True):
    """The calls of a family whose payload lies between half of `at_most_bytes` and `at_most_bytes`, a power of two."""

    at_most_bytes: int
    calls: int
    median_bytes: int
    median_ns: int
    """Of transfer where waiting is known for all of them, else of kernel time, in which waiting is inside."""
    waiting_inside: bool
    algbw_gbps: float
    """Median of payload / time, in GB/s of 10^9 bytes."""
    busbw_gbps: float | None
    """algbw times the factor of nccl-tests. Null where the group's size is unknown or differs."""
    times_expected: float | None
    """median_ns over what the rate of the next smaller size would give. Null for the smallest."""


class IssueRow(Record, frozen=True, kw_only=True):
    """When the exposed calls of a family were launched: too late to run beside anything, or early and held. A call counts as
    exposed with more than 1 % of its time. no_lead + held + ran_out + launch_unknown = exposed_calls."""

    exposed_calls: int
    no_lead: int
    """Started as soon as it was launched, and exposed from the start: when it was launched nothing was left to hide it."""
    held: int
    """Stood launched for longer than is usual before it started."""
    ran_out: int
    """Started as soon as it was launched, and ran beside compute before the exposed part."""
    launch_unknown: int
    """Without a launch in the trace, or launched by a graph, which launches all its kernels at once."""
    median_lead_ns: int | None
    """Median, over those with a known launch, of the time from the launch to the beginning of the exposed part."""
    median_held_ns: int | None
    """Median, over the held ones, of the time from launch to start."""
    behind: dict[str, int]
    """Kernel or copy that ended last before a held call started -> number of calls; the three most frequent."""
    blocked_in: dict[str, int]
    """What the host was blocked in since its last launch, before it launched a call without lead: name -> ns, summed."""
    median_call_ns: int
    """Median kernel time of one call, hidden ones included."""
    median_compute_ns: int | None
    """Median, per device, of the compute from the start of one call to the start of the next. Null with fewer than two calls."""
    last_of_step_exposed_ns: int | None
    """Exposed time of the family's last call of each step (such as the last gradient bucket), summed. Null without steps."""
    last_of_step_bytes: int | None
    """Median payload of these calls. Null where one is unknown."""


class SlowerRow(Record, frozen=True, kw_only=True):
    """A kernel, beside communication against alone."""

    name: str
    kernels_beside: int
    beside_ns: int
    ratio: float | None
    """Duration beside / duration alone. Null where that is not known."""
    cost_ns: int | None
    blocks: int | None = None
    """The largest grid of it beside communication, in blocks."""
    multiprocessors_short: bool | None = None
    """Whether its blocks and those of communication can be too many to have a multiprocessor each. False rules a shortage of
    multiprocessors out: memory bandwidth, cache or power is left. True proves none. Null where a count is unknown."""


class ContentionReport(Record, frozen=True, kw_only=True):
    """Compute beside communication against the same compute alone: slower beside, not necessarily because of."""

    word: str
    """slower, faster, no difference seen, not established, or unknown."""
    reason: str | None
    method: str | None
    """positions (the same kernel of the step, beside in some steps and alone in others) or strata."""
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    placebo_ratio: float | None
    """The same of positions that are never beside communication: 1 if the comparison is fair."""
    kernels_slower: int
    kernels_faster: int
    cost_ns: int | None
    cost_low_ns: int | None
    cost_high_ns: int | None
    kernels: list[SlowerRow]
    """The worst by cost."""
    net_gain: NetGainReport
    communication_blocks: int | None = None
    """The largest grid of a communication kernel, in blocks. NCCL keeps one multiprocessor per block to itself."""
    multiprocessors: int | None = None
    """Of each device. Null where the trace does not say, or devices differ."""


class CriticalPathReport(Record, frozen=True, kw_only=True):
    """The chain of work that the window's length rests on. Its parts add up to the window of its final rank."""

    rank: int
    start_ns: int
    end_ns: int
    parts: dict[str, int]
    """compute, transfer, waiting, host, ... in ns."""
    families: dict[str, int]
    """Communication on the path per family, in ns."""
    exposed_on_path_ns: int
    explained_share: float | None
    """Share of the path whose starts a real edge explains. Below 0.8 promises are ranges."""


class LeverRow(Record, frozen=True, kw_only=True):
    """What the window would lose if one thing were taken away, by replay. Levers are not additive."""

    lever: str
    at_least_ns: int | None
    at_most_ns: int | None
    bound_ns: int | None
    """No more than so much, whatever the replay says."""
    ceiling: bool
    """True: unknown dependences were dropped, so this is a limit and no promise."""
    reason: str


class BoundReport(Record, frozen=True, kw_only=True):
    """The shortest that any schedule of the same work could be, as far as the trace tells."""

    lower_bound_ns: int
    """The largest of path, compute and transfer."""
    path_ns: int
    compute_ns: int
    transfer_ns: int
    transfer_at_most_ns: int
    observed_ns: int
    hidden_of_possible: float | None
    """Share hidden of what any schedule could hide."""


class ConfigurationFinding(Record, frozen=True, kw_only=True):
    """A rule of `underlap lint` that holds for the configuration of the job (docs/lint.md)."""

    rule: str
    text: str
    settings: list[str]
    """name=value (file:line)."""
    change: str
    price: str
    sources: list[str]
    explains: list[str]
    """What it accounts for in this trace: axis and collective, with the cause. Empty where the trace shows nothing of it."""


class EngagementRow(Record, frozen=True, kw_only=True):
    """Something that the configuration switches on, held against the trace."""

    feature: str
    settings: list[str]
    expects: str
    engaged: bool | None
    """False: switched on, and not there. Null where the trace cannot tell."""
    text: str
    """What the trace shows instead, or what would tell."""


class ConfigurationReport(Record, frozen=True, kw_only=True):
    """What the configuration says about this trace."""

    files: list[str]
    findings: list[ConfigurationFinding]
    engagement: list[EngagementRow]
    """Not engaged first."""


class BorrowedReport(Record, frozen=True, kw_only=True):
    """What came from the recording given with --like, for kernels of device graphs. None of it is measured in this trace."""

    sources: list[str]
    """Base names of the files of that recording."""
    graphs: int
    """Distinct graphs of this trace."""
    replays: int
    """Launches of a graph."""
    refused: int
    """Replays of which nothing is borrowed; `reasons` says why."""
    kernels: int
    """Kernels of all replays."""
    matched: int
    """Of them, those with one certain partner by name and order in each step of that recording."""
    ambiguous: int
    """Of them, those in common order that may be any of several: they get only what all of these agree on."""
    shapes: int
    """Kernels whose grid and block are borrowed."""
    fields: dict[str, int]
    """Calls whose group, payload_bytes, ... is borrowed."""
    order: int
    """Pairs of kernels whose order is borrowed: edges of grade `borrowed` in the dependence graph."""
    contradicted: int
    """Such pairs that this trace shows in another order, and that are left out."""
    reasons: list[str]


class PredictionRow(Record, frozen=True, kw_only=True):
    """The time of one step, predicted from the graph of the step before it with the durations of the step itself."""

    rank: int
    device: int
    from_step: str
    step: str
    observed_ns: int
    predicted_ns: int
    before_ns: int
    """The length of the earlier step: what "no change" predicts."""
    error: float
    """(predicted - observed) / observed."""
    error_of_no_change: float
    """(before - observed) / observed."""
    matched_share: float
    """Of the earlier step's operations and host points, those with a partner in the later one."""


class PredictionReport(Record, frozen=True, kw_only=True):
    """Whether the dependence graph of one step, given the durations of the next, gives the time of the next, on the rank that
    the critical path ends on. The graph knows nothing else of the predicted step."""

    pairs: int
    """Pairs of steps that follow each other directly: the first 8, fewer in large traces."""
    not_comparable: int
    """Further pairs that end in different ways: a recording's last step has no next kernel."""
    error: float | None
    """Median over the pairs of the size of `error`. Null without pairs."""
    error_of_no_change: float | None
    """The same for "no change": what has to be beaten."""
    worst_error: float | None
    """The largest size."""
    better_than_no_change: bool | None
    """Whether the sizes add up to less. Null without pairs."""
    explained_share: float | None
    """Share of the critical path that a real edge explains, as in `critical_path`."""
    trusted: bool
    """False: no pair; or a median error above 1 % that is no better than no change; or an explained share below 0.8."""
    rests_on: str | None
    """In words, what the promises of levers and findings rest on where they are not trusted. Null where they are."""
    rows: list[PredictionRow]


class UnmatchedRow(Record, frozen=True, kw_only=True):
    """A kernel name that the table of kernel families does not know. It was counted as compute."""

    name: str
    kernels: int
    total_ns: int


class NoteRow(Record, frozen=True, kw_only=True):
    """Something about the input or the figures that a reader has to know."""

    code: str
    text: str


class AxisBytes(Record, frozen=True, kw_only=True):
    """What one kind of collective moves in one step, over all ranks."""

    axis: str
    """Mesh dimensions of its groups: dp, or dp x cp."""
    group: str
    """What it is for: tp, dp, fsdp, expert_dp, ..."""
    collective: str
    calls: int
    """Of one rank of each stage, added up."""
    payload_bytes: int
    sent_bytes: int
    """The least that has to leave the ranks without in-network reduction."""


class RoleMemory(Record, frozen=True, kw_only=True):
    """What one rank of a role holds at most."""

    role: str
    ranks: int
    peak_bytes: int
    fits: bool
    """Whether that is less than the device has."""


class PolicyRefusal(Record, frozen=True, kw_only=True):
    """A pass of the policy that was not applied."""

    axis: str
    name: str
    reason: str


class Prediction(Record, frozen=True, kw_only=True):
    """What a plan is predicted to take. Simulated, not measured."""

    model: str
    cluster: str
    layout: str
    workload: str
    policy: str
    """none, or axis=pass,... as given."""
    step_ns: int
    step_low_ns: int | None = None
    step_high_ns: int | None = None
    """With every measured cost at the quick and at the slow end of its range at once. Null where the costs are a model, whose
    errors are in docs/accuracy.md."""
    serial_ns: int | None
    """The same operations with each rank doing one at a time, in issue order, undisturbed. Null where no such order exists."""
    bound_ns: int
    """No order of these operations is shorter: longest chain of data, compute of one rank, transfers on one link."""
    step_ratio: float | None = None
    """step_ns over that of the first policy compared with; below 1 is a gain. Null without a comparison."""
    word: str | None = None
    """What the policy does to communication beside the first one: hidden (same bytes, shorter step), shifted (same bytes, the
    step as long as before), a loss (same bytes, longer step), removed (fewer bytes). Null without a comparison."""
    compute_ns: int
    """Mean over `memory`'s roles of the union of compute on one rank, as for hidden and exposed communication."""
    hidden_ns: int
    exposed_ns: int
    idle_ns: int
    tokens_per_s: float
    mfu: float | None
    """Model FLOP utilization: 6 FLOP per parameter and token plus full attention (Narayanan et al. 2021, appendix), over the
    dense peak of all ranks; recomputation is not counted. Null where the peak is unknown."""
    parameters: int
    activated_parameters: int
    """What one token meets; less than `parameters` with experts."""
    memory_bytes: int
    """The most that any rank holds: weights, gradients, states and activations, without allocator slack and workspaces."""
    device_memory_bytes: int
    memory: list[RoleMemory]
    """Fullest first."""
    bytes_by_axis: list[AxisBytes]
    bytes_unchanged: bool | None = None
    """Whether every axis moves what it moves without the policy. Null without a policy."""
    refused: list[PolicyRefusal] = []
    assumptions: list[str] = []
    does_not_support: list[str] = []
    """What must not be concluded from this figure."""


class Report(Record, frozen=True, kw_only=True):
    """See the module docstring."""

    schema: str = SCHEMA
    origin_ns: str
    provenance: Provenance
    window: Window
    summary: Summary | None
    """Null without a row in `ranks`."""
    step_summary: StepSummary | None
    ranks: list[RankRow]
    families: list[FamilyRow]
    """Largest exposed_share_ns first."""
    steps: list[StepRow]
    lanes: list[LaneRow]
    instances: list[InstanceRow]
    causes: list[CauseRow] = []
    """Why communication is exposed: adds up to the ranks' exposed time. Largest first."""
    coverage: float | None = None
    """Share of the exposed time with a cause other than unknown. Null without exposed time."""
    idle_causes: list[IdleCauseRow] = []
    """Why devices are idle: adds up to the ranks' idle_ns. Largest first."""
    headline: str | None = None
    """The sentence that the owner of the trace should hear first."""
    findings: list[FindingRow] = []
    late: list[LateRow] = []
    clocks: list[ClockRow] = []
    bubbles: list[BubbleRow] = []
    contention: ContentionReport | None = None
    """The price of hiding. Null where it was not looked for (large traces without --explain), like the four below."""
    critical_path: CriticalPathReport | None = None
    levers: list[LeverRow] = []
    joint_lever: LeverRow | None = None
    """All levers together: promises are not additive."""
    if_independent: LeverRow | None = None
    """A ceiling: every dependence that is not proven dropped."""
    if_nothing_sent: LeverRow | None = None
    """A ceiling: what sending fewer bytes could win at most. No schedule reaches it; `bound` is not held against it."""
    if_half_transfer: LeverRow | None = None
    """What transfers half as long would win: half the bytes, or a link of twice the rate. Their latencies are halved as well."""
    levers_unknown: str | None = None
    """Why there are no levers, where the window could not be replayed."""
    bound: BoundReport | None = None
    prediction: Prediction | None = None
    """Of a simulated plan. Null for traces."""
    predictions: list[Prediction] = []
    """One per policy compared, the first of which is what the others are compared with; empty without a comparison."""
    configuration: ConfigurationReport | None = None
    """Null where no configuration was given."""
    step_prediction: PredictionReport | None = None
    """How far the graph behind critical path, levers and bound can be trusted. Null where it was not looked for."""
    borrowed: BorrowedReport | None = None
    """Null without --like."""
    unmatched: list[UnmatchedRow]
    """Largest total_ns first."""
    notes: list[NoteRow]
    """Most important first."""


def to_json(report: Report) -> bytes:
    """The Report as JSON, keys in declared order, one space of indent."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def from_json(text: bytes | str) -> Report:
    """The Report from its JSON. Unknown keys are ignored. Raises `msgspec.ValidationError` on wrong types."""
    return msgspec.json.decode(text, type=Report)
