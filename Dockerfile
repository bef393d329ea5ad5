# How to build and use this image: docs/docker.md.
FROM python:3.11-slim

# A compiler for our kernels, torch.compile and Triton; bubblewrap and libseccomp for code in answers; tini as process 1, which
# passes signals on and collects processes that have ended.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ bubblewrap libseccomp2 tini \
    && rm -rf /var/lib/apt/lists/*

# A package index to look at beside PyPI, such as the one of PyTorch without CUDA.
ARG PIP_EXTRA_INDEX_URL

# PyTorch has a layer of its own, which a change of the code leaves as it is.
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt torch
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY groupwise groupwise
COPY recipes recipes
RUN pip install --no-cache-dir -c constraints.txt ".[smollm2,quant]"

# Any user may run it (docker run --user): these folders are open to all, as /tmp is. A user without an entry in
# /etc/passwd has no name and no home otherwise.
RUN useradd --create-home --uid 1000 groupwise \
    && mkdir --parents /work /home/groupwise/.cache \
    && chmod 1777 /work /home/groupwise /home/groupwise/.cache
ENV HOME=/home/groupwise USER=groupwise
# The host name of a container is known to no browser.
ENV GROUPWISE_VIEW_NAME=localhost
USER groupwise
WORKDIR /work
ENTRYPOINT ["tini", "-s", "--", "groupwise"]
CMD ["doctor"]
