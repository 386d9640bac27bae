"""The interleaver: real controllers over models of the API server, kube-scheduler and the rest, one step at a time.

`server` stores claims and pods as kube-apiserver does, `watching` shows them to a controller as late as it likes,
`strands` run the controller's real code in threads of which one moves at a time, `process` is one controller process.
`scheduler`, `claim_controller`, `surroundings` (nodes, slices, also of another driver, the class, a taint rule) and
`world` are all the others; `world` also says which steps are possible and takes them. `hardware` knows what nodes have.

The three classes of faults that Sieve (OSDI 2022) names are among the steps: intermediate states ("crashes", "gets no
answer" in its three forms, "loses its lease"), stale reads ("sees": each view of each process is behind by itself, as
are kube-scheduler's and controller-manager's), and unobserved states ("has to list": what happened in between is never
shown). So are times of day set forward and back, and two processes of which the older one's workers and writes go on
after its lease: the younger one begins when none of those can land any more (leader/election.py).

`checks` states what must hold after each step and at rest, `search` looks for schedules that break it, shrinks
them and tells them as stories, `faults` puts faults of the past back in.
"""
