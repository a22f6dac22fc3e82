"""How vLLM's flags are spelt, as far as a command line can be read without vLLM (vLLM 0.32, EngineArgs and `serve`)."""

SHORT = {
    "-tp": "tensor-parallel-size",
    "-dp": "data-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-ep": "enable-expert-parallel",
    "-q": "quantization",
    "-cc": "compilation-config",
    "-sc": "speculative-config",
    "-dc": "diffusion-config",
    "-ac": "attention-config",
    "-asc": "api-server-count",
    "-n": "nnodes",
    "-r": "node-rank",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dpm": "data-parallel-multi-port-external-lb",
}

_SWITCH_PREFIXES = ("no-", "enable-", "disable-", "skip-", "trust-", "use-", "return-", "allow-credentials")

_SWITCHES = frozenset(
    {
        "help",
        "headless",
        "grpc",
        "enforce-eager",
        "async-scheduling",
        "exclude-tools-when-tool-choice-none",
        "cohere-is-reasoning-model",
        "log-error-stack",
        "tokens-only",
        "allow-deprecated-quantization",
        "sleep-mode-offload-cudagraph",
        "numa-bind",
        "dcp-q-replicate",
        "data-parallel-hybrid-lb",
        "data-parallel-external-lb",
        "data-parallel-multi-port-external-lb",
        "ray-workers-use-nsight",
        "kv-sharing-fast-prefill",
        "swa-bounded-replay",
        "language-model-only",
        "mm-encoder-only",
        "interleave-mm-strings",
        "mm-device-do-normalize",
        "fully-sharded-loras",
        "specialize-active-lora",
        "kv-cache-metrics",
        "cudagraph-metrics",
        "jit-monitor-verbose",
        "long-prefill-token-threshold-adaptive",
        "scheduler-reserve-full-isl",
        "aggregate-engine-logging",
        "fail-on-environ-validation",
    }
)

_WITH_VALUE = frozenset({"disable-access-log-for-endpoints"})

_MANY = frozenset(
    {
        "lora-modules",
        "api-key",
        "allowed-media-domains",
        "served-model-name",
        "sleep-preserve-parameter-names",
        "logits-processors",
        "ignore-patterns",
        "numa-bind-nodes",
        "numa-bind-cpus",
        "kv-cache-dtype-skip-layers",
        "cpu-offload-params",
        "offload-params",
        "lora-target-modules",
        "collect-detailed-traces",
        "cudagraph-capture-sizes",
    }
)


def most_values(name: str) -> int:
    """How many words behind a flag may be its values: 0 for a switch, 1, or many.

    A flag that this table does not know takes one, unless its name says that it is a switch.
    """
    if name in _MANY:
        return 1_000
    if name in _WITH_VALUE:
        return 1
    return 0 if name in _SWITCHES or name.startswith(_SWITCH_PREFIXES) else 1
