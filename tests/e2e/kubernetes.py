"""The version of Kubernetes that the tests run on, and what differs between versions."""

from __future__ import annotations

import os
from typing import Final

from e2e import binaries

VERSION: Final = binaries.kubernetes_version(os.environ)
RELEASE: Final = binaries.release_of(VERSION)
"""As the programs tell it."""

IS_1_36: Final = VERSION == "1.36"

WITHOUT_TAINTS: Final = "--feature-gates=DRADeviceTaints=false,DRADeviceTaintRules=false"
"""From 1.37 on the second is on by default, and kube-apiserver does not start with it alone."""

TAINT_RULES: Final = f"/apis/resource.k8s.io/{'v1beta2' if IS_1_36 else 'v1'}/devicetaintrules"
TAINT_RULES_GATE: Final = ("--feature-gates=DRADeviceTaintRules=true",) if IS_1_36 else ()
"""For kube-apiserver and kube-controller-manager; the gate is on by default from 1.37 on."""
TAINT_RULES_API: Final = ("--runtime-config=resource.k8s.io/v1beta2=true",) if IS_1_36 else ()
"""For kube-apiserver: 1.36 does not serve the version by default."""

SET_ONCE: Final = "field is immutable" if IS_1_36 else "field cannot be modified once set"
"""How kube-apiserver refuses another allocation in place of one."""
