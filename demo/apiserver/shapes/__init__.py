"""The shapes of the objects served: which fields each API type has, in which form, and how lists in it are merged.

These tables are data: names and merge rules of the API of Kubernetes 1.36 and 1.37, one type per paragraph, one field
per line:

    TypeName
        fieldName TYPE [!] [omitzero] [merge[=key]] [retainKeys] [default=JSON] [only=VERSION]
        unserved otherField …

TYPE is ``string``, ``int32``, ``int64``, ``bool``, ``quantity``, ``intorstring``, ``time``, ``microtime``, ``raw``
(any JSON) or another type's name; ``*`` before it means that "not given" differs from zero, ``[]`` a list, ``{}`` a map
with string keys. ``!`` fields are written even if they are zero. ``merge`` is the rule of strategic merge patch.
``only`` fields are known to one version of Kubernetes, and unknown to the other. ``unserved`` fields exist in
Kubernetes, some behind a feature gate, but this server has no behaviour for them: a request that carries one is
refused, naming it.

No behaviour lives here; ``schema.py`` reads the tables.
"""

from __future__ import annotations

from dracaena.demo.apiserver.shapes import cluster, meta, pods, resource, workloads

TABLES = (meta.TABLE, cluster.TABLE, pods.TABLE, workloads.TABLE, resource.TABLE)

__all__ = ["TABLES"]
