# One image with both programs. The build asks no network: wheels/ holds all packages (`make wheels`), and no compiler runs.
# BASE is any image with python3 of the version that the wheels are for, its venv module, and CA certificates; a release
# names it by its digest (make release-image).
ARG BASE=docker.io/library/python:3.13-slim-trixie

FROM ${BASE} AS build
COPY wheels/ /wheels/
# Left out: the asyncio half of the Kubernetes client, which nothing imports, and bytecode of its models, of which we
# load none; together half of what they would add. All else is compiled: the root file system is read-only later.
# Unchecked: bytecode that asks for its source's time would be of no use where a build sets the times of files.
RUN python3 -m venv /opt/dracaena \
 && /opt/dracaena/bin/python -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-index --find-links /wheels \
      --only-binary :all: --no-deps --no-compile --require-hashes --requirement /wheels/requirements.txt \
 && rm -r /opt/dracaena/lib/python3*/site-packages/kubernetes/aio \
 && /opt/dracaena/bin/python -m pip uninstall --quiet --yes pip setuptools \
 && /opt/dracaena/bin/python -m compileall -q -f --invalidation-mode unchecked-hash -x 'kubernetes/client/(models|api)/' /opt/dracaena/lib

FROM ${BASE}
COPY --from=build /opt/dracaena /opt/dracaena
ENV PATH=/opt/dracaena/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
# Python's own images come without bytecode of the standard library: each start would compile what it loads, half a second of CPU.
RUN python -c "import sys, dracaena.controller.program, dracaena.kubelet_plugin.program, dracaena.mps.program, dracaena.exporter.program; \
      print(*(m.__file__ for m in sys.modules.values() if (getattr(m, '__file__', '') or '').startswith(sys.base_prefix + '/lib/')), sep='\n')" > /tmp/loaded \
 && python -m compileall -q --invalidation-mode unchecked-hash -i /tmp/loaded \
 && rm /tmp/loaded
LABEL org.opencontainers.image.title=dracaena org.opencontainers.image.licenses=Apache-2.0
# The controller needs no more. The chart runs the plugin as root, for kubelet's folders.
USER 65532:65532
ENTRYPOINT ["dracaena"]
