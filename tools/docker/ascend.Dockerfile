# On top of an image of vllm-ascend, which brings CANN, torch_npu, vLLM and vllm-ascend; pip changes none of them:
#
#   docker build -f tools/docker/ascend.Dockerfile --build-arg IMAGE=<vllm-ascend image, 0.30.0rc2> -t vllm-megamoe:ascend .
#
# The operator's package, cann_ops_transformer, must be in the image, of the same build as its CANN; doctor says so.
ARG IMAGE
FROM ${IMAGE}

COPY pyproject.toml README.md LICENSE /opt/vllm-megamoe/
COPY vllm_megamoe /opt/vllm-megamoe/vllm_megamoe
RUN python3 -m pip install --no-cache-dir --no-deps /opt/vllm-megamoe \
    && python3 -m pip install --no-cache-dir "pydantic>=2.7" "safetensors>=0.4" "rich>=13" "typer>=0.12" "pyyaml>=6" \
    && python3 -c "import importlib.metadata as m; assert m.version('vllm-ascend') == '0.30.0rc2', m.version('vllm-ascend')"

# The products' own environment comes from their base image's entry point.
CMD ["bash", "-lc", "vllm-megamoe doctor; exec bash"]
