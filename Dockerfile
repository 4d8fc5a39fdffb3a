# pfl-bench in a container. Build it in the checkout:
#
#   docker build -t pfl-bench .                                      # GPU (and CPU): torch from the default index has CUDA
#   docker build -t pfl-bench --build-arg TORCH_INDEX=ADDRESS .      # CPU alone, 4 GB smaller: ADDRESS is the index for CPU
#                                                                    # that the installation page of pytorch.org names
#   docker run --rm -v "$PWD":/work pfl-bench run demo/private_federated.yaml --out runs/mine
#   docker run --rm --gpus all --shm-size 8g -v "$PWD":/work pfl-bench run demo/private_federated.yaml device=cuda --out runs/gpu
#
# EXTRAS names optional parts: --build-arg EXTRAS=wandb,hub. The GPU needs NVIDIA's driver and container toolkit on the host.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY pfl_bench pfl_bench
COPY privacy privacy
COPY tasks tasks
COPY configs configs
RUN python -m pip install --no-cache-dir build \
    && python -m build --wheel --outdir /dist .

FROM python:${PYTHON}-slim
ARG TORCH_INDEX=""
ARG EXTRAS=""
COPY --from=build /dist /dist
COPY constraints.txt /dist/
RUN if [ -n "$TORCH_INDEX" ]; then \
        python -m pip install --no-cache-dir -c /dist/constraints.txt --index-url "$TORCH_INDEX" torch torchvision; \
    fi \
    && python -m pip install --no-cache-dir -c /dist/constraints.txt "$(echo /dist/*.whl)${EXTRAS:+[$EXTRAS]}" \
    && rm -r /dist
RUN useradd --create-home bench && mkdir /work && chown bench /work
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER bench
WORKDIR /work
ENTRYPOINT ["pfl-bench"]
CMD ["--help"]
