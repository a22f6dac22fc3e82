# vLLM on a CPU with the operator's twin, from the version lock of this clone:
#
#   docker build -f tools/docker/cpu.Dockerfile -t vllm-megamoe:cpu .
#   docker run --rm -p 8000:8000 -v "$PWD/model:/model" vllm-megamoe:cpu /model --max-model-len 2048
FROM python:3.11-slim-bookworm

# g++: vLLM compiles a model with it. make: set-up is a target of the Makefile.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/vllm-megamoe
COPY pyproject.toml README.md LICENSE Makefile ./
COPY tools tools
COPY vllm_megamoe vllm_megamoe
RUN make .venv && rm -rf /root/.cache

ENV PATH=/opt/vllm-megamoe/.venv/bin:$PATH \
    VLLM_NO_USAGE_STATS=1
RUN vllm-megamoe doctor
EXPOSE 8000
ENTRYPOINT ["vllm", "serve", "--quantization", "megamoe", "--host", "0.0.0.0"]
