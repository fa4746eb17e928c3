"""Written for transformers' Trainer; a callback saves and stops on SIGTERM."""

import steps
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Network(torch.nn.Module):
    """Computes its loss, as the Trainer expects."""

    def __init__(self):
        super().__init__()
        self.layers = steps.model()

    def forward(self, inputs, targets):
        self.loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        return {"loss": self.loss}


class SaveOnSignal(TrainerCallback):
    """Stops all ranks at the same step."""

    def on_step_end(self, args, state, control, model=None, **others):
        stop = steps.is_last(state.global_step, model.loss, lambda: torch.save(model.state_dict(), "saved"))
        control.should_training_stop = stop


arguments = TrainingArguments(
    output_dir="out",
    max_steps=100_000,
    per_device_train_batch_size=4,
    learning_rate=0.01,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
data = [{"inputs": inputs, "targets": targets} for inputs, targets in zip(*steps.rows(256), strict=True)]
Trainer(Network(), arguments, train_dataset=data, callbacks=[SaveOnSignal()]).train()
