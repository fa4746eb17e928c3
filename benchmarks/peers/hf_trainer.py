"""transformers.Trainer over tokenized rows, with the settings of our tasks: what most people train with.

The rows come from a safetensors file: `input_ids` and `labels` of all rows one after the other, and their `lengths`.
At its end each rank writes when every few steps were over, and how many useful tokens (no padding) they had.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
for name in ("model", "rows", "out"):
    parser.add_argument(f"--{name}", type=Path, required=True)
for name in ("steps", "micro", "every"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--group-by-length", action="store_true")
args = parser.parse_args()


class Rows(torch.utils.data.Dataset):
    """One row a sample, cut beforehand."""

    def __init__(self, file):
        columns = load_file(file)
        lengths = columns["lengths"].tolist()
        self.rows = list(zip(columns["input_ids"].split(lengths), columns["labels"].split(lengths), strict=True))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index][0], "labels": self.rows[index][1]}


useful = []  # tokens of each step's batch that are not padding


def collate(rows):
    """Pad to the longest of the batch; no mask where nothing is padded, which is the faster attention."""
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=0).long()
    labels = pad_sequence([row["labels"] for row in rows], batch_first=True, padding_value=-100).long()
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    useful.append(int(lengths.sum()))
    batch = {"input_ids": ids, "labels": labels}
    if lengths.min() < ids.shape[1]:
        batch["attention_mask"] = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return batch


class Clock(TrainerCallback):
    """Notes the time after every few steps."""

    def __init__(self):
        self.times = {}

    def on_step_end(self, settings, state, control, **more):
        if state.global_step % args.every == 0:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times[state.global_step] = time.time()


torch.manual_seed(1)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model, use_cache=False), dtype=torch.float32)
parameters = sum(p.numel() for p in model.parameters())
clock = Clock()
with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        output_dir=folder,
        max_steps=args.steps,
        per_device_train_batch_size=args.micro,
        learning_rate=args.lr,
        weight_decay=0.1,
        adam_beta2=0.95,
        optim="adamw_torch_fused",
        max_grad_norm=1.0,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=10,
        bf16=args.bf16,
        use_cpu=not torch.cuda.is_available(),
        tf32=True if torch.cuda.is_available() else None,
        torch_compile=args.compile,
        train_sampling_strategy="group_by_length" if args.group_by_length else "random",
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        logging_steps=10**9,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(
        model=model, args=settings, train_dataset=Rows(args.rows), data_collator=collate, callbacks=[clock]
    )
    loss = trainer.train().training_loss
found = {"times": clock.times, "useful": useful, "loss": loss, "parameters": parameters}
if torch.cuda.is_available():
    found["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
args.out.with_suffix(f".{settings.process_index}.json").write_text(json.dumps(found))
