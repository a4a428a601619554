"""The engine's process: takes commands from the test's, over a pipe. usage: engine_host.py FD MODEL"""

import sys
import time
import traceback
from typing import Any

from engine import Answer, EngineOptions, Run, connection

BLOCK_TOKENS = 32
FORGET_S = 20.0


def descriptor_of(worker: Any) -> Any:
    """In the worker's process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().descriptor  # type: ignore[attr-defined]


class Host:
    """One engine."""

    def __init__(self, pipe: Any, model: str, options: EngineOptions) -> None:
        from vllm import LLM
        from vllm.config import KVEventsConfig, KVTransferConfig

        if options.staged:
            from umbp.vllm.worker import WorkerSide

            WorkerSide.staged = True

        self._pipe = pipe
        self._abandoned = 0
        self._steps_here = not options.separate
        transfer = None
        if options.connector is not None:
            transfer = KVTransferConfig(
                kv_connector=options.connector,
                kv_connector_module_path=options.module,
                kv_role="kv_both",
                kv_load_failure_policy=options.policy,  # type: ignore[arg-type]
                kv_connector_extra_config=dict(options.extra),
            )
        self._llm = LLM(
            model=model,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="float32",
            max_model_len=512,
            max_num_seqs=4,
            max_num_batched_tokens=1024,
            block_size=BLOCK_TOKENS,
            kv_cache_memory_bytes=64 << 20,
            num_gpu_blocks_override=options.blocks,
            enable_prefix_caching=options.prefix_caching,
            disable_log_stats=False,
            tensor_parallel_size=options.tp,
            kv_transfer_config=transfer,
            kv_events_config=KVEventsConfig(enable_kv_cache_events=options.events, publisher="null"),
            distributed_executor_backend="mp" if options.separate else "uni",
        )
        self._events: list[Any] = []
        if options.events:
            core = self._llm.llm_engine.engine_core.engine_core  # type: ignore[attr-defined]
            core.scheduler.kv_event_publisher.publish = lambda batch: self._events.extend(batch.events)

    def generate(self, prompts: list[list[int]], max_tokens: int, pauses: list[int]) -> tuple[str, Run]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True)
        engine = self._llm.llm_engine
        step, longest = 0, 0.0
        original = engine.step

        def observed() -> Any:
            nonlocal step, longest
            if step in pauses:
                self._pipe.send(("step", step))
                self._pipe.recv()
            begin = time.monotonic()
            outputs = original()
            longest = max(longest, time.monotonic() - begin)
            step += 1
            return outputs

        before = self._preemptions()
        engine.step = observed  # type: ignore[method-assign]
        try:
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        finally:
            engine.step = original  # type: ignore[method-assign]
        answers = [Answer(tuple(o.outputs[0].token_ids), o.num_cached_tokens or 0) for o in outputs]
        return "run", Run(answers, longest, self._preemptions() - before)

    def abandon(self, prompts: list[list[int]], step: int) -> tuple[str, None]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=24, detokenize=False, ignore_eos=True)
        engine = self._llm.llm_engine
        self._abandoned += 1
        ids = [
            engine.add_request(f"abandoned-{self._abandoned}-{index}", prompt, params)
            for index, prompt in enumerate(prompts)
        ]
        for _ in range(step):
            engine.step()
        engine.abort_request(ids)
        while engine.has_unfinished_requests():
            engine.step()
        return "done", None

    def forget(self) -> tuple[str, None]:
        deadline = time.monotonic() + FORGET_S
        while not self._llm.reset_prefix_cache():
            assert time.monotonic() < deadline, "blocks are still in use"
            # Stores that are under way pin their blocks; an engine in this process looks at them in its steps only.
            if self._steps_here:
                self._llm.llm_engine.step()
        return "done", None

    def hashes(self, prompt: list[int]) -> tuple[str, list[bytes]]:
        from vllm import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        config = self._llm.llm_engine.vllm_config.cache_config
        function = get_hash_fn_by_name(config.prefix_caching_hash_algo)
        init_none_hash(function)
        request = Request(
            "hashes",
            prompt,
            SamplingParams(max_tokens=1),
            None,
            block_hasher=get_request_block_hasher(BLOCK_TOKENS, function),
        )
        return "hashes", [bytes(block_hash) for block_hash in request.block_hashes]

    def descriptor(self) -> tuple[str, dict[str, str]]:
        descriptors: list[dict[str, str]] = self._llm.collective_rpc(descriptor_of)
        return "descriptor", descriptors[0]

    def events(self) -> tuple[str, list[Any]]:
        events, self._events = self._events, []
        return "events", events

    def metric(self, name: str, labels: dict[str, str]) -> tuple[str, float]:
        metrics = (m for m in self._llm.get_metrics() if m.name == name)
        return "metric", sum(m.value for m in metrics if labels.items() <= m.labels.items())  # type: ignore[attr-defined]

    def close(self) -> tuple[str, None]:
        self._llm.llm_engine.engine_core.shutdown()
        return "closed", None

    def _preemptions(self) -> int:
        return int(self.metric("vllm:num_preemptions", {})[1])


def main() -> None:
    pipe = connection(int(sys.argv[1]))
    host = None
    command = "start"
    while command != "close":
        try:
            if host is None:
                host = Host(pipe, sys.argv[2], pipe.recv())
                pipe.send(("ready", None))
                continue
            command, *arguments = pipe.recv()
            pipe.send(getattr(host, command)(*arguments))
        except EOFError:
            return
        except BaseException:
            pipe.send(("error", traceback.format_exc()))
            if host is None:
                sys.exit(1)


if __name__ == "__main__":
    main()
