"""Our worker with parts of its speed switched off, to see what each is worth.

`switched.py PARTS OUT task lm KEY=VALUE …`: PARTS is a comma-separated list of `attention` (masks as transformers makes
them), `head` (the logits of all positions) and `feed` (batches are prepared between the steps), or `-`. OUT gets the
number of times that the CPU waited for the GPU (null without one).
"""

import importlib
import json
import sys
import warnings
from pathlib import Path
from types import ModuleType

WORKER = Path(__file__).resolve().parents[2] / "clusterrun" / "worker"
PACKAGE = "_clusterrun"


def whole_head(token_loss):
    """Compute the logits of all positions, in float32, and their loss."""
    token_loss.split = lambda model: None
    token_loss.TokenLoss.compile = lambda self, wanted: None
    prepare = token_loss.TokenLoss.prepare

    def everywhere(self, tensors, random, rows=0, training=True):
        found = prepare(self, tensors, random, rows, training)
        positions, count = found.pop("positions", None), found["input_ids"].numel()
        if positions is not None:
            for name, filler in (("targets", token_loss.IGNORED), ("weights", 0)):
                if name in found:
                    found[name] = found[name].new_full((count,), filler).index_copy(0, positions, found[name])
        return found

    token_loss.TokenLoss.prepare = everywhere


def main() -> int:
    without, out, *arguments = sys.argv[1:]
    parts = without.split(",")
    package = ModuleType(PACKAGE)
    package.__path__ = [str(WORKER.parent)]
    sys.modules[PACKAGE] = package
    import torch

    def of(name):
        return importlib.import_module(f"{PACKAGE}.worker.{name}")

    if "attention" in parts:
        of("models.attention").choose = lambda *args, **more: ""
    if "head" in parts:
        whole_head(of("models.token_loss"))
    if "feed" in parts:
        feed = of("training.feed").Feed
        begin = feed.__init__
        feed.__init__ = lambda self, *args, **more: begin(self, *args, **more, ahead=False)
    waits = 0

    def count(message, *more):
        nonlocal waits
        waits += "synchronizing CUDA operation" in str(message)

    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("warn")
        warnings.simplefilter("always")
        warnings.showwarning = count
    status = of("entry").main(arguments)
    Path(out).write_text(json.dumps(waits if torch.cuda.is_available() else None))
    return status


if __name__ == "__main__":
    sys.exit(main())
