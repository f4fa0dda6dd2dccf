# The agent in an image. Slim by default; for GPUs: docker build --build-arg EXTRAS=agent,cuda13 .
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
ARG EXTRAS=agent,cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY client client
COPY service service
RUN python -m venv /opt/meshwright \
    && /opt/meshwright/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="meshwright" \
      org.opencontainers.image.description="The device agent for JAX hosts" \
      org.opencontainers.image.licenses="Apache-2.0"
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /var/lib/meshwright meshwright
COPY --from=build /opt/meshwright /opt/meshwright
ENV PATH=/opt/meshwright/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MESHWRIGHT_STATE_DIR=/var/lib/meshwright \
    MESHWRIGHT_HOST=127.0.0.1
USER 10001
WORKDIR /var/lib/meshwright
EXPOSE 8790
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8790/healthz', timeout=4)"]
ENTRYPOINT ["tini", "--", "meshwright-agent"]
CMD ["serve"]
