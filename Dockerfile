# syntax=docker/dockerfile:1
# The agent in an image, as a user that is not root. Flavors:
#   slim   docker build .                                              plans, and benches on CPUs
#   GPU    docker build --build-arg EXTRAS=agent,cuda13 .              CUDA comes with jax's wheels, the driver from the host
#   GPU, on your base: --build-arg BASE_IMAGE=nvidia/cuda:13.0.0-base-ubuntu24.04    of Debian's kind, its python3 ≥ 3.11
#   TPU    docker build --build-arg EXTRAS=agent,tpu .
# Add compile-tpu or compile-cuda to EXTRAS for plans that the compiler vouches for.
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
ARG EXTRAS=agent,cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
# A base without Python (nvidia/cuda) gets its distribution's.
# hadolint ignore=DL3008
RUN python3 -c "import ensurepip" \
    || { apt-get update && apt-get install --no-install-recommends --yes python3-venv; }
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY client client
COPY service service
RUN python3 -m venv /opt/meshwright \
    && /opt/meshwright/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" \
    && /opt/meshwright/bin/pip uninstall --yes pip setuptools

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="meshwright" \
      org.opencontainers.image.description="The device agent for JAX hosts" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes tini \
    && { command -v python3 || apt-get install --no-install-recommends --yes python3; } \
    && apt-get clean && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 meshwright \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /var/lib/meshwright \
       --shell /usr/sbin/nologin meshwright \
    && install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/meshwright
COPY --from=build /opt/meshwright /opt/meshwright
ENV PATH=/opt/meshwright/bin:$PATH \
    HOME=/var/lib/meshwright \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONFAULTHANDLER=1 \
    MESHWRIGHT_STATE_DIR=/var/lib/meshwright \
    MESHWRIGHT_HOST=127.0.0.1
USER 10001:10001
WORKDIR /var/lib/meshwright
VOLUME /var/lib/meshwright
EXPOSE 8790
# Follows MESHWRIGHT_PORT and goes by no proxy; where the agent has another address or TLS, the orchestrator's own probe
# takes its place.
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python3", "-c", "import os, urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:' + os.environ.get('MESHWRIGHT_PORT', '8790') + '/healthz', timeout=4)"]
# -s: a subreaper also where it is not process 1 (--pid host).
ENTRYPOINT ["tini", "-s", "--", "meshwright-agent"]
CMD ["serve"]
