# The images of `cargo xtask image`, built with Docker: `docker build --target driver .`
# They contain the same files, because the same program writes them.
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends cmake libclang-dev libfuse3-dev pkg-config
WORKDIR /src
COPY . .
RUN cargo xtask image --only driver --rootfs /driver && cargo xtask image --only mounter --rootfs /mounter

FROM scratch AS driver
COPY --from=build /driver /
ENV PATH=/bin
USER 65534:65534
ENTRYPOINT ["/bin/s3-csi-controller"]

FROM scratch AS mounter
COPY --from=build /mounter /
ENV PATH=/bin
USER 65534:65534
ENTRYPOINT ["/bin/s3-csi-mounter"]
