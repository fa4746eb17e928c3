"""Written for transformers' Trainer with its just-in-time checkpoint on SIGTERM; resumes from the newest checkpoint."""

import sys
import time

import steps
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Network(torch.nn.Module):
    """Computes its loss, as the Trainer expects."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Linear(8, 1)

    def forward(self, inputs, targets):
        return {"loss": torch.nn.functional.mse_loss(self.layers(inputs), targets)}


class Slow(TrainerCallback):
    """Makes a step take a second."""

    def on_step_begin(self, args, state, control, **others):
        time.sleep(1)


folder, last = sys.argv[1], int(sys.argv[2])
arguments = TrainingArguments(
    output_dir=folder,
    max_steps=last,
    per_device_train_batch_size=4,
    learning_rate=0.01,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    enable_jit_checkpoint=True,
)
data = [{"inputs": inputs, "targets": targets} for inputs, targets in zip(*steps.rows(256), strict=True)]
trainer = Trainer(Network(), arguments, train_dataset=data, callbacks=[Slow()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
print(f"ends at step {trainer.state.global_step}", flush=True)
