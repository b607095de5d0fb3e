# The project in an image, on the CPU or with CUDA.
#
#   docker build -t lit-project .                                                               CPU
#   docker build -t lit-project --build-arg TORCH_BACKEND=cu130 .             an NVIDIA GPU with driver 580 or newer
#   --build-arg COMMIT=$(git describe --always --abbrev=40 --exclude='*' --dirty)     records the commit in every run
#   mkdir -p runs data                                                    yours: Docker would make them root's
#   docker run --rm -v "$PWD/runs:/project/runs" lit-project fit -c configs/quickstart.yaml
#   docker run --rm --gpus all --shm-size=8g -v "$PWD/runs:/project/runs" -v "$PWD/data:/project/data" lit-project \
#       fit -c configs/fashion_mnist_cnn.yaml -c configs/overlays/gpu.yaml
#
# Where your user and group are not 1000 (`id -u`, `id -g`): --build-arg UID=$(id -u) --build-arg GID=$(id -g)
#
# torch brings the CUDA libraries along, so that the base image is the same for both; the host needs the driver and the
# NVIDIA container toolkit. TORCH_BACKEND= (empty) takes the files of requirements.lock, checked by their hashes.
ARG BASE_IMAGE=python:3.12-slim-bookworm
FROM ${BASE_IMAGE}

ARG TORCH_BACKEND=cpu
# torch.compile and Triton compile C and C++ code when a run starts
RUN apt-get update && apt-get install --yes --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*

# UID and GID of the user: those of the host, where mounted folders are to be written to
ARG UID=1000
ARG GID=1000
RUN groupadd --gid ${GID} user && useradd --uid ${UID} --gid ${GID} --create-home user && \
    install --directory --owner=user --group=user /project /project/runs /project/data
USER user
WORKDIR /project

# the dependencies are a layer of their own, which a change of the code leaves as it is: only the version is read there
COPY --chown=user:user pyproject.toml requirements.lock Makefile README.md LICENSE ./
COPY --chown=user:user engine engine
COPY --chown=user:user src/lit_project/__init__.py src/lit_project/__init__.py
COPY --chown=user:user configs/quickstart.yaml configs/quickstart.yaml
RUN make setup TORCH_BACKEND=${TORCH_BACKEND} && rm -rf ~/.cache

# the project is installed editable: its code and configs are all that is missing
COPY --chown=user:user . .

ENV PATH=/project/.venv/bin:$PATH PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE
# .git is not part of the image, so provenance.json takes the commit from here
ARG COMMIT
ENV LIT_PROJECT_COMMIT=${COMMIT}
ENTRYPOINT ["lit-project"]
CMD ["--help"]
