"""vLLM on the block store.

`umbp.vllm.runtime` gives `umbpd` to vLLM's own UMBPStoreConnector. Importing this package imports no engine.
"""
