"""Writes a tiny random Llama, config and weights, under a folder. Fixed seed, no tokenizer, no network."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, VOCABULARY, POSITIONS = 4, 256, 4, 2, 512, 2048, 2048
HEAD_DIM = HIDDEN // HEADS

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
    "attention_bias": False,
    "mlp_bias": False,
}


def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, std: float = 0.05) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * std

    tensors = {
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN, std=1.0),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random(VOCABULARY, HIDDEN, std=0.3),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = random(heads * HEAD_DIM, HIDDEN)
        tensors[f"{prefix}self_attn.o_proj.weight"] = random(HIDDEN, HEADS * HEAD_DIM)
        tensors[f"{prefix}mlp.gate_proj.weight"] = random(INTERMEDIATE, HIDDEN)
        tensors[f"{prefix}mlp.up_proj.weight"] = random(INTERMEDIATE, HIDDEN)
        tensors[f"{prefix}mlp.down_proj.weight"] = random(HIDDEN, INTERMEDIATE)
        tensors[f"{prefix}input_layernorm.weight"] = torch.ones(HIDDEN)
        tensors[f"{prefix}post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    return tensors


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    save_file(weights(seed=0), str(folder / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
