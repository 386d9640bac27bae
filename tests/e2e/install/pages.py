"""The commands that the pages tell people to type, and which of them test_commands.py does not run itself, and why.

Pages of design are not read: they tell what was decided, and nobody types them.
"""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
_DOCS = REPOSITORY / "docs"
_OF_THE_DEMO = (_DOCS / "demo.md", _DOCS / "dev" / "embedded-server.md")
PAGES = (
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted({*_DOCS.rglob("*.md")} - {*_DOCS.glob("design/*.md"), *_OF_THE_DEMO}),
    *sorted((REPOSITORY / "deploy").rglob("*.md")),
)
"""All but the pages of the demo, which has a cluster of its own: tests/integration/test_kubectl_pages.py types that."""

_PROGRAMS = (
    *("apt", "buildah", "crictl", "ctr", "curl", "docker", "dracaena", "git", "go", "helm", "journalctl", "kubectl"),
    *("make", "nvidia-smi", "oras", "pip", "podman", "python3", "skopeo", "systemctl"),
)
_COMMAND = rf"(?:sudo |[A-Z][A-Z_0-9]*=\S+ |\.venv/bin/)*(?:{'|'.join(_PROGRAMS)}) [^\n]+"
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TYPED = re.compile(rf"^(?:\$ )?({_COMMAND})$", re.MULTILINE)
_IN_A_SENTENCE = re.compile(rf"`({_COMMAND.replace('[^', '[^`')}|\.ci/run)`")

_SHARES = "shares the GPUs of the only node; tests/e2e/test_sharing.py does it by the plugin's settings"
_MIG = "needs GPUs that can be divided; tests/integration/test_kubelet_plugin_mig.py has a fake driver"
_VGPUS = "needs a vGPU manager; tests/integration/test_kubelet_plugin_vgpu_layouts.py has a fake /sys"
_LAYOUT = "needs GPUs that can be divided; tests/integration/test_kubelet_plugin_mig_layouts.py has a fake driver"
_VFIO = "needs GPUs and an IOMMU; tests/e2e/test_passthrough_on_demand.py does it with a fake /sys"
_KATA = "needs Kata and GPUs in mode on; tests/unit/docs/test_pages.py checks the manifest and simulates its pod"
_ALL_WELL = "shows the Events of what went wrong, and here nothing did"
_SPOKEN_OF = "names the command in a sentence, without what it needs"
_MORE = "test_documents.py types it, with values for the node of the tests"
_EXAMPLE = "test_examples.py does it and compares with what the example's page promises"
_DRIVER = "asks NVIDIA's driver, which no machine of these tests has"
_ON_A_NODE = "is typed on a node; tests/unit/cli/test_driver.py types it"
_TAKES_THE_NODE = "takes the only node away from the tests that come after"
_MOVES = "moves a node from another program, which these tests do not have"
_INSTALLS = (
    "needs a registry of Python packages, which these tests do not have; tests/architecture/test_wheel.py builds it"
)
_PLUGIN = "tests/integration/test_kubectl.py types it"
_KREW = "needs krew and archives for all platforms; tests/unit/chart/test_krew.py unpacks one and links it as krew does"
_QUICKSTART = "starts from a node with a GPU; test_documents.py installs the chart, test_examples.py runs such pods"
_LETS_GO = "makes the plugin release the driver; tests/integration/test_kubelet_plugin_health.py sets the label"

NOT_RUN_HERE = {
    ".ci/run": "runs all tests, these too",
    "apt install runc containernetworking-plugins iproute2 iptables buildah debootstrap": (
        "installs programs on the machine of the tests, which run because they are there"
    ),
    "docker push registry.example.com/dracaena:0.1.0": "needs a registry of images, which these tests do not have",
    (
        "helm install dracaena deploy/helm/dracaena --namespace dracaena "
        "--values deploy/helm/gpu-operator.values.yaml --values image.yaml"
    ): _QUICKSTART,
    (
        "helm install dracaena deploy/helm/dracaena --namespace dracaena "
        "--values deploy/helm/one-node.values.yaml --values image.yaml"
    ): _QUICKSTART,
    "kubectl apply -f first-gpu.yaml": _QUICKSTART,
    "kubectl create namespace dracaena": _QUICKSTART,
    "kubectl delete -f first-gpu.yaml": _QUICKSTART,
    "kubectl delete namespace dracaena": _QUICKSTART,
    "kubectl describe pod first-gpu": _QUICKSTART,
    "kubectl label namespace dracaena pod-security.kubernetes.io/enforce=privileged": _QUICKSTART,
    "kubectl label node NODE gpu.dracaena.dev/serves-": _MOVES,
    "kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=true --overwrite": _MOVES,
    "kubectl logs first-gpu": _QUICKSTART,
    "kubectl wait pod/first-gpu --for=jsonpath='{.status.phase}'=Succeeded --timeout=2m": _QUICKSTART,
    "kubectl get devicetaintrules": "lists rules, and here is none; test_taint_rules.py makes one",
    "kubectl get pods -A -o wide | grep device-plugin": _MOVES,
    "dracaena controller": _SPOKEN_OF,
    "dracaena doctor": "tests/integration/test_cli_doctor.py types it",
    "dracaena doctor --bundle dracaena.tar.gz": "tests/integration/test_cli_doctor.py types it",
    "dracaena driver release": _ON_A_NODE,
    "dracaena driver release --reason TEXT": _ON_A_NODE,
    "dracaena driver resume": _ON_A_NODE,
    "dracaena driver status": _ON_A_NODE,
    "dracaena explain": _SPOKEN_OF,
    "dracaena explain deployment/NAME": "tests/integration/test_cli_cluster.py types it, for a Job",
    "dracaena exporter": _SPOKEN_OF,
    "dracaena kubelet-plugin": _SPOKEN_OF,
    "dracaena node-labels": _SPOKEN_OF,
    "dracaena node-labels --machine hgx-h100": "tests/unit/cli/test_node_labels.py types it",
    "dracaena node-labels --nvml": _DRIVER,
    "dracaena node-labels --remove --patch-node NODE": "tests/integration/test_node_labels.py types it",
    "dracaena completion bash": "tests/unit/cli/test_completion.py types it",
    "dracaena completion fish | source": "tests/unit/cli/test_completion.py types it",
    "dracaena schema podlist": "tests/unit/cli/test_schema.py types it",
    "dracaena mps": _SPOKEN_OF,
    "dracaena simulate": _SPOKEN_OF,
    "dracaena topology import": _SPOKEN_OF,
    "dracaena topology record": _DRIVER,
    "dracaena topology record -o mine.json": _DRIVER,
    "dracaena validate": _SPOKEN_OF,
    "dracaena validate pod.yaml": "tests/unit/docs/test_migration.py types it",
    "go mod tidy -e": "fetches modules from a network that these tests do not have",
    "helm install dracaena deploy/helm/dracaena --namespace dracaena --create-namespace": _MORE,
    (
        "helm install dracaena deploy/helm/dracaena --namespace dracaena --create-namespace "
        "--values deploy/helm/gpu-operator.values.yaml"
    ): _MOVES,
    "helm rollback": _SPOKEN_OF,
    "helm uninstall": _SPOKEN_OF,
    "helm uninstall --no-hooks": _SPOKEN_OF,
    "helm uninstall dracaena --namespace dracaena": "test_documents.py types it",
    "helm upgrade dracaena deploy/helm/dracaena --namespace dracaena": _MORE,
    (
        "helm upgrade dracaena deploy/helm/dracaena --namespace dracaena --reuse-values "
        "--set kubeletPlugin.nodeSettings.left-to-kube-scheduler.allocator=kube-scheduler"
    ): "test_examples.py types it",
    (
        "kubectl --namespace dracaena create secret generic dracaena-web --from-file=web-config.yml "
        "--from-file=tls.crt --from-file=tls.key --from-file=ca.crt"
    ): "test_web_config.py makes such a Secret, with a certificate of its own",
    "kubectl apply -f": _SPOKEN_OF,
    "kubectl apply -f deploy/examples/admin-access/pod.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/deployment/deployment.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/fall-back/pod.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/four-gpus/pod.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/job/job.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/left-to-kube-scheduler/pod.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/shared-gpu/pod.yaml": _SHARES,
    "kubectl label node NODE gpu.dracaena.dev/settings=shared": _SHARES,
    (
        "helm upgrade dracaena deploy/helm/dracaena --namespace dracaena --reuse-values "
        '--set-json \'kubeletPlugin.nodeSettings.shared.gpus=[{"select":"all","as":"shared"}]\''
    ): _SHARES,
    (
        "helm upgrade --install dracaena deploy/helm/dracaena --namespace dracaena --create-namespace "
        "--set mps.enabled=true "
        '--set-json \'kubeletPlugin.nodeSettings.shared.gpus=[{"select":"all","as":"shared"}]\''
    ): _SHARES,
    "kubectl apply -f - <<'END'": "tests/unit/docs/test_sharing.py types the manifests that follow",
    (
        "helm upgrade dracaena deploy/helm/dracaena --namespace dracaena --reuse-values "
        '--set-json \'kubeletPlugin.nodeSettings.divided.gpus=[{"select":"all","as":"mig"}]\''
    ): _MIG,
    "kubectl label node NODE gpu.dracaena.dev/settings=divided": _MIG,
    (
        "helm upgrade dracaena deploy/helm/dracaena --namespace dracaena --reuse-values "
        "--set deviceClasses.confidential=true "
        '--set-json \'kubeletPlugin.nodeSettings.machines.gpus=[{"select":"all"'
        ',"as":"passthrough","bind":"existing"}]\''
    ): _KATA,
    (
        "helm upgrade dracaena deploy/helm/dracaena --namespace dracaena --reuse-values "
        '--set-json \'kubeletPlugin.nodeSettings.machines.gpus=[{"select":"all","as":"passthrough"}]\''
    ): _VFIO,
    "kubectl label node NODE gpu.dracaena.dev/settings=machines": _VFIO,
    "kubectl apply -f claim.yaml": _VFIO,
    "kubectl apply -f deploy/examples/kata-confidential/pod.yaml": _KATA,
    "kubectl apply -f deploy/examples/mig-pair/pod.yaml": _MIG,
    "kubectl apply -f deploy/examples/mig-slices/1g-10gb.yaml": _MIG,
    (
        "helm upgrade dracaena deploy/helm/dracaena --namespace dracaena --reuse-values "
        "--set-file kubeletPlugin.migLayouts=layouts.yaml "
        '--set-json \'kubeletPlugin.nodeSettings.divided.gpus=[{"select":"all"'
        ',"as":"layout","file":"/etc/dracaena-mig/layouts.yaml"}]\''
    ): _LAYOUT,
    "kubectl label node NODE gpu.dracaena.dev/mig-layout=balanced": _LAYOUT,
    (
        "helm upgrade dracaena deploy/helm/dracaena --namespace dracaena --reuse-values "
        '--set-json \'kubeletPlugin.nodeSettings.desktops.gpus=[{"select":"all"'
        ',"as":"vgpu","file":"/etc/dracaena-vgpu/layouts.yaml"}]\' '
        "--set-file kubeletPlugin.vgpuLayouts=vgpus.yaml"
    ): _VGPUS,
    "kubectl label node NODE gpu.dracaena.dev/settings=desktops": _VGPUS,
    "kubectl label node NODE gpu.dracaena.dev/vgpu-layout=desktops": _VGPUS,
    (
        "kubectl wait node/NODE --timeout=1h "
        """--for=jsonpath='{.status.conditions[?(@.type=="MigLayoutApplied")].message}'="""
        "'MIG layout balanced: all GPUs have it'"
    ): _LAYOUT,
    (
        "helm upgrade dracaena deploy/helm/dracaena --namespace dracaena --reuse-values "
        "--set 'rewrite.resourceNames={nvidia.com/gpu,nvidia.com/mig-1g.10gb}'"
    ): "test_unchanged_manifests.py upgrades so, and takes it back",
    (
        "helm upgrade --install dracaena deploy/helm/dracaena --namespace dracaena --reuse-values "
        "--set exporter.enabled=true --set monitoring.alerts.enabled=true "
        "--set monitoring.dashboard.enabled=true"
    ): "needs the kinds of Prometheus' operator, which are not here; tests/unit/chart/test_render.py renders it",
    'curl -H "Authorization: Bearer $TOKEN"': _SPOKEN_OF,
    "curl https://POD:8080/metrics": "names a pod of the reader's; test_web_config.py asks one",
    "dracaena controller --page-address 127.0.0.1:8082": "tests/integration/test_page.py runs it until it is stopped",
    "journalctl -u kubelet": "asks systemd, under which no kubelet of these tests runs",
    "kubectl --namespace dracaena port-forward service/dracaena-controller-page 8082": "runs until it is stopped",
    "kubectl create token my-service-account": "names an account of the reader's",
    "kubectl port-forward": _SPOKEN_OF,
    "nvidia-smi mig -dci": _DRIVER,
    "nvidia-smi mig -lgip": _DRIVER,
    "nvidia-smi -i GPU -mig 1": _DRIVER,
    "nvidia-smi mig -lgi": _DRIVER,
    "nvidia-smi -mig": _DRIVER,
    "kubectl apply -f deploy/examples/linked-gpus/pod.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/one-gpu/pod.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/selectors/pod.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/shared-claim/pods.yaml": _EXAMPLE,
    "kubectl apply -f deploy/examples/shared-containers/pod.yaml": _EXAMPLE,
    "kubectl cordon NODE": _TAKES_THE_NODE,
    "kubectl describe": _SPOKEN_OF,
    "kubectl describe pod one-gpu": "test_documents.py types it",
    "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data": _TAKES_THE_NODE,
    "kubectl label node NODE <driver>/release-driver-": _LETS_GO,
    "kubectl label node NODE <driver>/release-driver=true": _LETS_GO,
    "kubectl label node NODE <driver>/settings=lab": "test_examples.py types the same for a section of its own",
    "kubectl label node NODE gpu.dracaena.dev/settings=left-to-kube-scheduler": "test_examples.py types it",
    "kubectl label node NODE gpu.dracaena.dev/release-driver-": _LETS_GO,
    "kubectl label node NODE gpu.dracaena.dev/release-driver=true": _LETS_GO,
    "kubectl get resourceslices --field-selector=spec.nodeName=NODE": _MOVES,
    "kubectl label node NODE gpu.dracaena.dev/serves=true": _MOVES,
    "kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=false": _MOVES,
    "kubectl uncordon NODE": _TAKES_THE_NODE,
    "dracaena demo": "shows a cluster of its own for minutes; tests/integration/test_demo_program.py runs it",
    "kubectl dracaena status": _PLUGIN,
    "kubectl dracaena status --context other": _PLUGIN,
    "helm upgrade dracaena ... --set mps.enabled=true": (
        "needs NVIDIA's control program; tests/integration/test_mps_program.py has a fake"
    ),
    "kubectl get": _SPOKEN_OF,
    "kubectl get events -A --field-selector reason=DeviceCollision": _ALL_WELL,
    "kubectl get events -A --field-selector reason=FailedPrepareDynamicResources": _ALL_WELL,
    "kubectl krew install --manifest=dist/krew/dracaena.yaml "
    "--archive=dist/krew/kubectl-dracaena-v0.1.0-linux-amd64.tar.gz": _KREW,
    "pip wheel --no-deps --wheel-dir dist .": _INSTALLS,
    "pip install '.[completion]'": _INSTALLS,
    "pip install '.[demo]'": _INSTALLS,
    "pip install --no-index --find-links wheels dracaena": "run at the end of `make release`",
    "pip install '.[programs]'": _INSTALLS,
    "nvidia-smi --gpu-reset": _DRIVER,
    "nvidia-smi --gpu-reset -i GPU": _DRIVER,
    "skopeo inspect --format '{{.Digest}}' docker://docker.io/library/python:3.13-slim-trixie": (
        "asks a registry of images, which these tests do not have"
    ),
    "systemctl restart nvidia-persistenced": _DRIVER,
    "systemctl start nvidia-persistenced": _DRIVER,
    "systemctl stop nvidia-persistenced": _DRIVER,
    "nvidia-smi -L": "in a container of a user's image, which brings that program",
    "nvidia-smi topo -m": "only what it prints is spoken of",
    "python3 -m http.server -d dist/site": "serves until it is stopped; what it shows is built by `make site`",
}
"""Commands of the pages, as commands() returns them, that test_commands.py does not run, each with its reason.

Of `make` it shows what would be done: most targets are the tests themselves.
"""


def test_file(named: str) -> Path:
    """Return the file of tests that a reason names: a path from the root, or a bare name in this folder."""
    return REPOSITORY / named if "/" in named else Path(__file__).parent / named


def commands(page: Path) -> list[str]:
    """Return the commands of a page in its order, each once: lines of blocks, then those within sentences.

    Without comments, the prompt, `sudo` and the folder of our own program; lines that go on are one.
    """
    text = page.read_text(encoding="utf-8")
    blocks = [block for language, block in _FENCED.findall(text) if language in ("", "sh")]
    typed = [line for block in blocks for line in _TYPED.findall(block.replace("\\\n", ""))]
    found = [*typed, *_IN_A_SENTENCE.findall(_FENCED.sub("", text))]
    return list(dict.fromkeys(_plain(line) for line in found))


def _plain(line: str) -> str:
    without_comment = re.sub(r" +#.*", "", line)
    return re.sub(r"\bsudo |\.venv/bin/", "", re.sub(r"\s+", " ", without_comment)).strip()
