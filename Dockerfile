# coplace as one static program in an image of its own:
#     docker build -t coplace .
#     docker run --rm -v "$PWD:/work" coplace search llama2-7b --study smoke --out runs/first
FROM rust:1-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends musl-tools \
    && rustup target add "$(uname -m)-unknown-linux-musl"
WORKDIR /coplace
COPY . .
RUN cp "$(tools/binary | tail -n 1)" /coplace-static

FROM scratch
COPY --from=build /coplace-static /coplace
WORKDIR /work
ENTRYPOINT ["/coplace"]
