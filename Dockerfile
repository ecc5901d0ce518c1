# gofsdp on CPUs. `docker build -t gofsdp .` runs the whole test suite on the way;
# `docker run --rm -v "$PWD:/data" gofsdp sft --model_name_or_path /data/model …` fine-tunes a model.

# libtorch and the toolchain.
FROM golang:1.26-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ cmake make python3 python3-pip \
 && rm -rf /var/lib/apt/lists/*
# libtorch lies where it lies in the runtime stage: libgofsdp.so remembers that path.
ENV GOFSDP_CACHE=/opt/gofsdp
WORKDIR /src

# Modules and libtorch first: these layers stay while the sources change.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make build
RUN make test

# What training needs: the program, the shim, libtorch's shared libraries.
FROM debian:bookworm-slim AS runtime
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libstdc++6 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 gofsdp
ENV GOFSDP_CACHE=/opt/gofsdp GOFSDP_LIB=/usr/local/lib/libgofsdp.so
COPY --from=build /opt/gofsdp/libtorch/2.13.0/torch/lib /opt/gofsdp/libtorch/2.13.0/torch/lib
COPY --from=build /opt/gofsdp/libtorch/2.13.0/nvidia /opt/gofsdp/libtorch/2.13.0/nvidia
COPY --from=build /src/build/libgofsdp.so /usr/local/lib/libgofsdp.so
COPY --from=build /src/build/bin/gofsdp /usr/local/bin/gofsdp
USER gofsdp
WORKDIR /home/gofsdp
ENTRYPOINT ["gofsdp"]
CMD ["--help"]
