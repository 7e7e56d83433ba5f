# The binary of a release and the authorities that sign for the web, and nothing else: no shell, no libraries, no package
# to keep up to date. scripts/image stages the two and builds this for each architecture:
#
#   ca-certificates.crt      certificates in PEM, by default those of the machine that builds
#   linux/ARCH/vllm-vcr      out of dist/vllm-vcr_VERSION_linux_ARCH.tar.gz, the bytes of the release
#   linux/ARCH/vllm-vcr-…    from there too: the programs that vllm-vcr calls to capture in a cluster, and to read some datasets
FROM scratch

ARG TARGETARCH
ARG VERSION
ARG REVISION

LABEL org.opencontainers.image.title="vllm-vcr" \
  org.opencontainers.image.description="Conformance of both sides of the vLLM engine-core boundary, without a GPU" \
  org.opencontainers.image.source="https://github.com/vllm-vcr/conformance" \
  org.opencontainers.image.documentation="https://github.com/vllm-vcr/conformance#readme" \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="${VERSION}" \
  org.opencontainers.image.revision="${REVISION}"

COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY linux/${TARGETARCH}/vllm-vcr linux/${TARGETARCH}/vllm-vcr-cluster linux/${TARGETARCH}/vllm-vcr-dataset /

# Where goldens that were fetched are kept, if it is mounted: `docker run --tmpfs /cache`, or a folder of the host.
ENV VLLM_VCR_CACHE_DIR=/cache

# By number, as there is no list of users here. It owns no file: what is checked comes in by a mount, the goldens are in
# the binary, and reports go to a mount that belongs to whom `docker run --user` names.
USER 65532:65532
ENTRYPOINT ["/vllm-vcr"]
