"""Plan -> Timeline, by doing it: the same Plan that `simulate` predicts, on torch.distributed. The only package that needs torch.

program.py     a rank's flat program, and memory for its buffers      no torch, no process
supported.py   what can be run, and why not                           no torch
fabric.py      namespaces, and links of a known rate                  no torch
machine.py     buffers, groups and closures, bound once               torch
operations/    what each operation computes, by role and phase        torch
streams.py     the stream of each instruction, and who waits for whom  no torch
backend.py     the CPU with gloo, or GPUs with NCCL                   torch
measuring.py   what operations and transfers take here                torch
job.py         what ranks are told and hand in                        no torch
worker.py      one rank: meets the others, runs, hands in its record
rank.py        a started process                                      no torch before it is tied to its parent
launch.py      the ranks of one machine or of a job, and their end
"""
