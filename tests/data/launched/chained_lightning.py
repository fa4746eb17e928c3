"""Written for Lightning: saves every 5 steps, stops on SIGTERM and resumes from the last checkpoint."""

import sys
import time
from pathlib import Path

import lightning
import steps
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Network(lightning.LightningModule):
    """A regression with slow steps."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        time.sleep(1)
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


folder, last = Path(sys.argv[1]), int(sys.argv[2])
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*steps.rows(256)), batch_size=4)
trainer = lightning.Trainer(
    max_steps=last,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint(folder, every_n_train_steps=5, save_last=True)],
)
trainer.fit(Network(), data, ckpt_path="last")
print(f"ends at step {trainer.global_step}", flush=True)
