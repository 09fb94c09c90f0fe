#!/usr/bin/env python3
"""Logits of an exported folder by Hugging Face's LlamaForCausalLM or GPT2LMHeadModel.

    python scripts/peers/hf_logits.py FOLDER --tokens 1,2,3 --output FILE [--reference FILE]

They are compared with packlua's. Writes tokens [1, T] and logits [1, T, V] f32 as safetensors; with --reference it instead prints the largest
difference from the logits of that file, and the largest logit. Needs torch and transformers.
"""
import argparse

import numpy
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def load(folder):
    """The model, refused unless every parameter is in the file and nothing else is."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info[key], (key, info[key])
    assert type(model).__name__ == model.config.architectures[0], type(model)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.weight.data_ptr() == embedding.weight.data_ptr(), "the head is not tied"
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tokens", help="ids, separated by commas")
    parser.add_argument("--output")
    parser.add_argument("--reference")
    options = parser.parse_args()
    with safe_open(f"{options.folder}/model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}, file.metadata()
        assert "lm_head.weight" not in file.keys()
    if options.reference:
        expected = load_file(options.reference)
        tokens = expected["tokens"].astype(numpy.int64)
    else:
        tokens = numpy.array([[int(word) for word in options.tokens.split(",")]], dtype=numpy.int64)
    with torch.no_grad():
        logits = load(options.folder)(torch.from_numpy(tokens)).logits.numpy()
    if options.reference:
        difference = numpy.abs(logits - expected["logits"]).max()
        print(f"largest difference {difference:.3e}, largest logit {numpy.abs(logits).max():.3f}")
    if options.output:
        save_file({"tokens": tokens.astype(numpy.int32), "logits": numpy.ascontiguousarray(logits)}, options.output,
                  metadata={"transformers": transformers.__version__, "torch": torch.__version__})


if __name__ == "__main__":
    main()
