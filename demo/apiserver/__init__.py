"""The embedded API server: what the demo, the integration tests and the benches use as a cluster.

It speaks the Kubernetes API over HTTP on 127.0.0.1, keeps everything in memory, and behaves like kube-apiserver 1.37 or
1.36 with default feature gates, for the kinds in ``resources.py``. Three rules keep it honest:

* it refuses what it does not implement (501, or 415 for media types), names it, and never does anything by halves;
* where it answers, it answers like the real server: objects, status codes, reasons, the causes of a refusal with
  their fields, events, versions. The words of its messages are its own;
* nothing in the product knows that it exists, and of the product it uses only what is true of every API server: the
  rules of ``validation/``, quantities, limits, JSON as text, the language of selectors. Recorded transcripts of real
  servers check those rules, too.

It asks for no credentials and has no authorisation. It listens only on the loopback address, and is meant only for
trying and testing.

Known differences, all on purpose:

* It has one behaviour for both versions, that of 1.37, which differ in fields, selectable fields and what discovery
  says. 1.36 reports some faults of owners and conditions at other fields.
* As by 1.36, capitals in the domain of an attribute are taken, and unchanged capacities of a slice are checked again.
* CEL expressions are refused if they do not compile, but not for their estimated cost.
* Fields behind feature gates that are off by default are refused (501), not dropped. So are dry runs, the deletion of a
  collection, and resourceVersionMatch of lists.
* The finalizers of every kind are checked alike, and unqualified ones refused in updates, too.
* Of a pod's status addresses, generations, and containers that run again after their end are not checked.
* The admission plugins ServiceAccount and PodTopologyLabels do not run: no account, volume, token or zone is put into
  pods.
* No garbage collector, namespace controller or event expiry runs in it, as with a bare kube-apiserver
  (events expire there after an hour, here never).
* Server-side apply is refused (415), and nobody's fields are recorded: ``metadata.managedFields`` stays empty.
  So a write that would change nothing but owners is none.
* A bookmark carries the newest version of all kinds, and is sent even if nothing has happened since the last one.
* Opaque parameters are compared as text, as there; a number that a patch rewrites is printed as Python prints it.
* Bodies in protobuf are read for the kinds that kubectl creates by itself (``protobuf``), and refused for others (415).
  So are all bodies in YAML.
* The state of a pod in a table is one of those that the stand-ins bring about; pods cannot be selected by hostNetwork,
  podIP and podIPs.
* Answers are JSON only, as objects or as tables: no YAML, protobuf, bare metadata or aggregated discovery. The
  descriptions of a table's columns are empty. Of OpenAPI v2 there is only the head.

Where things are: ``server`` the process side, ``http`` and ``router`` requests, ``bodies`` and ``decode`` reading,
``shapes`` and ``schema`` the tables of fields, ``writes`` and ``deletes`` the order of the steps, ``strategies`` and
``validation`` what is specific to a kind (claims, classes and slices by the rules of ``dracaena validate``),
``storage`` objects and their history, ``lists`` and ``watches`` reading it, ``tables`` the columns that kubectl prints,
``discovery`` and ``openapi`` what clients ask first, ``faults`` injected faults.
"""

from __future__ import annotations

from dracaena.demo.apiserver.faults import Faults, InjectedFault
from dracaena.demo.apiserver.server import ApiServer

__all__ = ["ApiServer", "Faults", "InjectedFault"]
