"""Lightning with a data loader of 4 workers: saves and stops on SIGUSR1 and on SIGTERM, and resumes.

Arguments: the last step, and a file to which each call of a handler is written.
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.append(os.environ["LIGHTNING_PACKAGES"])  # build/lightning: packages that nothing else of this project needs

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

LAST, CALLS, RANK = int(sys.argv[1]), Path(sys.argv[2]), os.getpid()
FOLDER = Path(os.environ["CLUSTERRUN_CHECKPOINT_DIR"])


def write(signum):
    """Note who handles a signal."""
    with CALLS.open("a") as calls:
        calls.write(f"{signal.Signals(signum).name} {'rank' if os.getpid() == RANK else 'child'}\n")


class Slow(torch.utils.data.Dataset):
    """Samples that take a while to load."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(8)


class Network(lightning.LightningModule):
    """A linear layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class StopOnUsr1(Callback):
    """Saves and stops after the step in which SIGUSR1 came to a rank."""

    def __init__(self):
        self.came = False
        signal.signal(signal.SIGUSR1, self.note)
        signal.signal(signal.SIGTERM, lambda signum, frame: write(signum))  # Lightning's handler calls this one

    def note(self, signum, frame):
        write(signum)
        self.came = True

    def on_train_start(self, trainer, module):
        print("pid", RANK, "begins at step", trainer.global_step, flush=True)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.global_step % 10 == 0:
            print("step", trainer.global_step, flush=True)
        if trainer.strategy.reduce_boolean_decision(self.came, all=False):  # all ranks stop at the same step
            trainer.save_checkpoint(FOLDER / "last.ckpt")
            trainer.should_stop = True


trainer = lightning.Trainer(
    max_steps=LAST,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[
        StopOnUsr1(),
        ModelCheckpoint(FOLDER, "last", every_n_train_steps=LAST, enable_version_counter=False, save_on_exception=True),
    ],
)
trainer.fit(Network(), torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=4), ckpt_path="last")
print("ends at step", trainer.global_step, flush=True)
sys.exit(0 if trainer.global_step == LAST else 3)  # only a finished training is COMPLETED
