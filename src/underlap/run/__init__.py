"""Plan -> Timeline, by doing it: the same Plan that `simulate` predicts, on torch.distributed. The only package that needs torch.

program.py        a rank's flat program, and memory for its buffers            no torch, no process
supported.py      what can be run, and why not                                 no torch
streams.py        the stream of each instruction, and who waits for whom       no torch
fabric.py         namespaces, and links of a known rate (fabric_spec.py)       no torch
priority.py       whether gloo's threads may interrupt compute                 no torch
job.py            what ranks are told and hand in                              no torch
times.py          when the instructions of a step ran                          no torch
recording.py      the trace of it (device_recording.py: of a GPU)              no torch
timing.py         how long each operation took, and what was covered           no torch
comparing.py      whether one plan was faster than another                     no torch
machine.py        buffers and closures, bound once                             torch
pages.py          memory of the host in huge pages                             torch
operations/       what each operation computes, by role and phase              torch
communication.py  collectives and messages (routed.py, stream_wire.py)         torch
lanes.py          where closures run: the host, or streams                     torch
backend.py        the CPU with gloo, or GPUs with NCCL                         torch
engine.py         one rank of one plan: bound, stepped, recorded               torch
serving.py        a decode behind a prefill                                    torch
session.py        a rank among others: meets them, compares, hands in          torch
meter.py          bytes on an interface around a step                          torch
measuring.py      what `underlap calibrate` measures (measuring_transfers.py)  torch
worker.py         one rank of `underlap run`: plans, steps, records            torch
rank.py           a started process                                            no torch before it is tied to its parent
launch.py         the ranks of one machine or of a job, and their end          torch
"""
