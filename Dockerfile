# docker build -t groupwise .
# docker run --gpus all -v $PWD/runs:/home/groupwise/runs groupwise train demo
# docker run -p 8642:8642 -v $PWD/runs:/home/groupwise/runs groupwise view runs --host 0.0.0.0 --no-browser
FROM python:3.11-slim

# A C++ compiler for torch.compile and Triton, bubblewrap for code in answers.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ bubblewrap \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY groupwise groupwise
COPY recipes recipes
RUN pip install --no-cache-dir -c constraints.txt ".[smollm2,quant]"

RUN useradd --create-home groupwise
USER groupwise
WORKDIR /home/groupwise
ENTRYPOINT ["groupwise"]
CMD ["doctor"]
