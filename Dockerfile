# An image of hearthfs: the Debian package, installed. docs/kubernetes.md explains how to run it.
#
#   docker build -t hearthfs .

FROM rust:1-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN systemd/debian/build /out

FROM debian:bookworm-slim
# The same release as above: the program needs the C library that it was built with.
RUN --mount=type=bind,from=build,source=/out,target=/out \
    apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates /out/hearthfs_*.deb \
    && rm -rf /var/lib/apt/lists/*
# No shell in between: signals reach the daemon, which drains and unmounts.
ENTRYPOINT ["/usr/bin/hearthfs"]
CMD ["--help"]
