"""Golden transcripts: what a real kube-apiserver answers, kept as text, for the embedded API server to be held to.

A scenario (`scenarios/`) is a small function that sends requests. `recording` runs it against any API server and gives
the masked transcript; `golden/` holds those of a real kube-apiserver, one file a scenario. `make test` replays the
scenarios against the embedded server and wants the same text; `make e2e` records them anew, twice, and wants it too.

After a change of a scenario, `DRACAENA_E2E_RECORD=1 make e2e E2E="-k transcripts"` writes the files anew.

A mask (`masks.py`) hides what a server chooses by chance, the words of refusals, and the owners of fields. What else
the embedded server does differently on purpose (its package docstring) is left out by the scenario, which says so.

By hand, with a server that nobody else writes to, and whose etcd already had a few writes when it started::

    PYTHONPATH=tests python -P -m transcripts --server URL --token-file FILE --authority FILE --etcd URL [--write]
"""
