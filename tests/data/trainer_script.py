"""transformers.Trainer on a tiny Llama and made-up tokens: no word of clusterrun in it."""

import argparse
import hashlib
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(Dataset):
    """Rows of tokens, each its own label; notes which samples were taken."""

    def __init__(self):
        self.rows = torch.randint(0, 64, (64, 16), generator=torch.Generator().manual_seed(0))
        self.taken = []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.taken.append(int(index))
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def digest(model):
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()

    # no seed: every rank draws weights of its own, and the Trainer gives them those of rank 0
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=16, **shape))
    untrained = digest(model)
    data = Tokens()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data)
        trainer.train()
    print(f"rank {trainer.args.process_index} of {trainer.args.world_size}", end=" ")
    print(f"untrained {untrained} trained {digest(model)} samples {data.taken}", flush=True)


if __name__ == "__main__":
    main()
