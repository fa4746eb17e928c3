"""A training on random data that prints its progress in the way of its first argument, for about as many steps."""

import sys

import torch
from tqdm import tqdm

WAY, STEPS = sys.argv[1], int(sys.argv[2])
EPOCHS = 4
torch.manual_seed(0)
torch.set_num_threads(1)


def train_by_hand() -> None:
    """Train a network of a few layers."""
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> float:
        loss = model(torch.randn(512, 512)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    if WAY == "tqdm":
        bar = tqdm(range(STEPS))
        for _ in bar:
            bar.set_postfix(loss=step())
        return
    per_epoch = STEPS // EPOCHS
    for epoch in range(1, EPOCHS + 1):
        for number in tqdm(range(1, per_epoch + 1), desc=f"Epoch {epoch}/{EPOCHS}", disable=WAY != "epochs"):
            loss, done = step(), (epoch - 1) * per_epoch + number
            if WAY == "lines" and done % 10 == 0:
                print(f"step {done}/{STEPS} loss {loss:.4f}", flush=True)
        with torch.no_grad():  # what stands for an evaluation
            for _ in range(per_epoch // 10):
                model(torch.randn(512, 512))


def train_with_trainer() -> None:
    """Train a language model with transformers' Trainer."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, **shape))
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(1000, (8 * STEPS, 128))]
    settings = TrainingArguments(
        "out", num_train_epochs=1, per_device_train_batch_size=8, logging_steps=50, save_strategy="no", report_to=[]
    )
    Trainer(model, settings, train_dataset=rows).train()


train_with_trainer() if WAY == "trainer" else train_by_hand()
