# Plain for now: one image with both programs. The base is an argument so that a mirror or a local base can serve.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /build
COPY requirements/ requirements/
RUN python3 -m venv /opt/dracaena \
 && /opt/dracaena/bin/pip install --no-cache-dir --require-hashes -r requirements/runtime.txt
COPY . .
RUN /opt/dracaena/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${BASE}
COPY --from=build /opt/dracaena /opt/dracaena
ENV PATH=/opt/dracaena/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# The plugin needs root for kubelet's folders; the controller's Deployment sets a user of its own.
ENTRYPOINT ["dracaena"]
