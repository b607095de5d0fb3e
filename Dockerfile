# An image of the project, for the CPU or for CUDA.
#
#   docker build -t lit-project .                                      # for the CPU
#   docker build -t lit-project --build-arg TORCH_BACKEND=cu130 .      # for NVIDIA GPUs with driver 580 or newer
#   mkdir -p runs data                                                 # otherwise, Docker creates them as root
#   docker run --rm -v "$PWD/runs:/project/runs" lit-project fit quickstart
#   docker run --rm --gpus all --shm-size=8g -v "$PWD/runs:/project/runs" -v "$PWD/data:/project/data" lit-project \
#       fit fashion_mnist_cnn gpu
#
# Add --build-arg COMMIT=$(git describe --always --abbrev=40 --exclude='*' --dirty) to record the commit in every run. If
# your user and group are not 1000 (`id -u`, `id -g`), add --build-arg UID=$(id -u) --build-arg GID=$(id -g).
#
# torch includes the CUDA libraries, so both variants use the same base image. The host needs the driver and the NVIDIA
# container toolkit. TORCH_BACKEND= (empty) installs the files of requirements.lock and checks their hashes.
ARG BASE_IMAGE=python:3.12-slim-bookworm
FROM ${BASE_IMAGE}

ARG TORCH_BACKEND=cpu
# torch.compile and Triton compile C and C++ code when a run starts.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ make && rm -rf /var/lib/apt/lists/*

# To write to mounted folders, the user needs the UID and GID of the host user.
ARG UID=1000
ARG GID=1000
RUN groupadd --gid ${GID} user && useradd --uid ${UID} --gid ${GID} --create-home user && \
    install --directory --owner=user --group=user /project /project/runs /project/data
USER user
WORKDIR /project

# The dependencies are a separate layer, so that code changes do not rebuild it. It reads only the project's version.
COPY --chown=user:user pyproject.toml requirements.lock Makefile README.md LICENSE ./
COPY --chown=user:user engine engine
COPY --chown=user:user src/lit_project/__init__.py src/lit_project/__init__.py
COPY --chown=user:user configs/quickstart.yaml configs/quickstart.yaml
RUN make setup TORCH_BACKEND=${TORCH_BACKEND} && rm -rf ~/.cache

# The installation is editable, so only the code and the configs are missing.
COPY --chown=user:user . .

ENV PATH=/project/.venv/bin:$PATH PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE
# The image does not contain .git, so provenance.json takes the commit from this variable.
ARG COMMIT
ENV LIT_PROJECT_COMMIT=${COMMIT}
ENTRYPOINT ["lit-project"]
CMD ["--help"]
